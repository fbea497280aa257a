package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	pollTime       = 50 * time.Millisecond
	sessionTimeout = 6 * time.Second
	perTransaction = 20
	abortedEvery   = 4
)

// inGroup is how a member of a group joins. What it is given and loses is printed as it happens; topic and partition stand in one word.
func (c *call) inGroup() []kgo.Opt {
	tell := func(what string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			_ = emit(line{"what": what, "partitions": words(places)})
		}
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(c.group), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(sessionTimeout), kgo.HeartbeatInterval(300 * time.Millisecond), kgo.MetadataMaxAge(time.Second),
		kgo.OnPartitionsAssigned(tell("assigned")), kgo.OnPartitionsRevoked(tell("revoked")), kgo.OnPartitionsLost(tell("lost")),
	}
	if c.pattern != "" {
		options = append(options, kgo.ConsumeTopics(c.pattern), kgo.ConsumeRegex())
	} else {
		options = append(options, kgo.ConsumeTopics(c.topic))
	}
	if c.protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	return options
}

func words(places map[string][]int32) []string {
	all := []string{}
	for topic, partitions := range places {
		for _, partition := range partitions {
			all = append(all, fmt.Sprintf("%s-%d", topic, partition))
		}
	}
	slices.Sort(all)
	return all
}

// endOfInput is closed when standard input ends.
func endOfInput() <-chan struct{} {
	ends := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ends)
	}()
	return ends
}

// member reads in a group until standard input ends, and then leaves. A record is printed when its offset is committed.
func member(ctx context.Context, c *call) error {
	client, err := c.client(c.inGroup()...)
	if err != nil {
		return err
	}
	return pollUntil(ctx, endOfInput(), client, func(records []*kgo.Record) error {
		if err := client.CommitRecords(ctx, records...); err != nil {
			return emit(line{"what": "refused", "error": word(err)})
		}
		for _, r := range records {
			if err := emit(line{"what": "read", "at": fmt.Sprintf("%s-%d", r.Topic, r.Partition), "offset": r.Offset}); err != nil {
				return err
			}
		}
		return nil
	})
}

// pollUntil gives `handle` the records of each poll that has some, until `ends` is closed; then the client leaves.
func pollUntil(ctx context.Context, ends <-chan struct{}, client *kgo.Client, handle func([]*kgo.Record) error) error {
	for {
		select {
		case <-ends:
			client.Close()
			return emit(line{"what": "left"})
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		polling, cancel := context.WithTimeout(ctx, pollTime)
		read := client.PollFetches(polling)
		cancel()
		if err := faultOf(read); err != nil {
			return err
		}
		if read.Empty() {
			continue
		}
		if err := handle(read.Records()); err != nil {
			return err
		}
	}
}

// faultOf is what ends a consumer: neither that nothing came, nor a session that is joined anew.
func faultOf(read kgo.Fetches) error {
	for _, fault := range read.Errors() {
		_, session := errors.AsType[*kgo.ErrGroupSession](fault.Err)
		if !session && !errors.Is(fault.Err, context.DeadlineExceeded) {
			return fmt.Errorf("%s-%d: %w", fault.Topic, fault.Partition, fault.Err)
		}
	}
	return nil
}

// transform copies a topic into another, a transaction for each few records, until standard input ends. Each fourth one it aborts. What it
// read is printed with how the transaction ended.
func transform(ctx context.Context, c *call) error {
	options := append(c.inGroup(), kgo.TransactionalID(c.id), kgo.TransactionTimeout(sessionTimeout), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DefaultProduceTopic(c.out), kgo.ProducerLinger(0), kgo.SeedBrokers(c.bootstrap), kgo.MetadataMinAge(50*time.Millisecond))
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	ends := endOfInput()
	for turn := 1; ; {
		select {
		case <-ends:
			session.Close()
			return emit(line{"what": "left"})
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		polling, cancel := context.WithTimeout(ctx, pollTime)
		read := session.PollRecords(polling, perTransaction)
		cancel()
		if err := faultOf(read); err != nil {
			return err
		}
		if read.Empty() {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		values := []string{}
		for _, r := range read.Records() {
			values = append(values, string(r.Value))
			session.Produce(ctx, &kgo.Record{Key: r.Key, Value: r.Value}, nil)
		}
		committed, err := session.End(ctx, kgo.TransactionEndTry(turn%abortedEvery != 0))
		if err != nil {
			return err
		}
		turn++
		if err := emit(line{"what": "ended", "committed": committed, "values": values}); err != nil {
			return err
		}
	}
}
