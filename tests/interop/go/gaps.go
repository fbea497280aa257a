package main

import (
	"context"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// gaps reads partition 0 of topics in both isolation levels until standard input ends, and prints each record, as `readers/main.go` does.
func gaps(ctx context.Context, c *call) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	places := map[string]map[int32]kgo.Offset{}
	for topic := range strings.SplitSeq(c.topic, ",") {
		places[topic] = map[int32]kgo.Offset{0: kgo.NewOffset().AtStart()}
	}
	levels := map[string]kgo.IsolationLevel{"read_uncommitted": kgo.ReadUncommitted(), "read_committed": kgo.ReadCommitted()}
	var readers sync.WaitGroup
	var lock sync.Mutex
	for isolation, level := range levels {
		client, err := c.client(kgo.ConsumePartitions(places), kgo.FetchIsolationLevel(level))
		if err != nil {
			return err
		}
		defer client.Close()
		readers.Go(func() {
			for ctx.Err() == nil {
				fetches := client.PollFetches(ctx)
				lock.Lock()
				fetches.EachRecord(func(r *kgo.Record) {
					_ = emit(line{"what": "got", "isolation": isolation, "topic": r.Topic, "offset": r.Offset, "key": string(r.Key)})
				})
				lock.Unlock()
			}
		})
	}
	<-endOfInput()
	cancel()
	readers.Wait()
	return emit(line{"what": "left"})
}
