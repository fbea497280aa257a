package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	aheadRecords = 5
	trims        = 25
	leaderID     = 1
	fetchKey     = 1
)

// fetchCounts has how many fetches each broker answered.
type fetchCounts struct {
	mutex  sync.Mutex
	counts map[string]int
}

// OnBrokerE2E is called by franz-go for each answer.
func (f *fetchCounts) OnBrokerE2E(broker kgo.BrokerMetadata, key int16, _ kgo.BrokerE2E) {
	if key != fetchKey {
		return
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.counts[strconv.Itoa(int(broker.NodeID))]++
}

func (f *fetchCounts) take() map[string]int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	taken := f.counts
	f.counts = map[string]int{}
	return taken
}

// A follower's reader reads a topic of one partition that another broker leads than the one in its own rack.
type followersReader struct {
	topic   string
	client  *kgo.Client
	fetches *fetchCounts
	found   []int64
}

// withReader makes the topic, reads the first records, and goes on when the consumer fetches from the follower.
func withReader(ctx context.Context, c *call, course func(*followersReader, *kadm.Client) error) error {
	return c.admin(func(admin *kadm.Client) error {
		request := kmsg.NewPtrCreateTopicsRequest()
		request.TimeoutMillis = 10_000
		made := kmsg.NewCreateTopicsRequestTopic()
		made.Topic, made.NumPartitions, made.ReplicationFactor = c.topic, -1, -1
		replicas := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		replicas.Replicas = []int32{leaderID, 2, 3}
		made.ReplicaAssignment = append(made.ReplicaAssignment, replicas)
		request.Topics = append(request.Topics, made)
		reset := kgo.NewOffset().AtStart()
		if c.reset == "end" {
			reset = kgo.NewOffset().AtEnd()
		}
		reader := &followersReader{topic: c.topic, fetches: &fetchCounts{counts: map[string]int{}}}
		place := map[string]map[int32]kgo.Offset{c.topic: {0: reset.At(0)}}
		client, err := c.client(
			kgo.Rack(c.rack), kgo.ConsumePartitions(place), kgo.ConsumeResetOffset(reset), kgo.FetchMaxWait(20*time.Millisecond),
			kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.WithHooks(reader.fetches))
		if err != nil {
			return err
		}
		defer client.Close()
		reader.client = client
		answer, err := request.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if code := answer.Topics[0].ErrorCode; code != 0 {
			return fmt.Errorf("the topic cannot be created: %d", code)
		}
		if err := reader.produce(ctx, aheadRecords); err != nil {
			return err
		}
		if err := reader.readTo(ctx, aheadRecords); err != nil {
			return err
		}
		for reader.fetches.take()["2"] == 0 {
			reader.poll(ctx)
			if ctx.Err() != nil {
				return fmt.Errorf("it doesn't read at the follower: %w", ctx.Err())
			}
		}
		return course(reader, admin)
	})
}

// closest deletes what the consumer has read, again and again; it should read every record once, at the follower.
func closest(ctx context.Context, c *call) error {
	return withReader(ctx, c, func(reader *followersReader, admin *kadm.Client) error {
		for range trims {
			if err := reader.produce(ctx, aheadRecords); err != nil {
				return err
			}
			deleted := make(chan error, 1)
			before := int64(len(reader.found))
			go func() { deleted <- reader.delete(ctx, admin, before) }()
			if err := reader.readTo(ctx, len(reader.found)+aheadRecords); err != nil {
				return err
			}
			for waiting := true; waiting; {
				select {
				case err := <-deleted:
					if err != nil {
						return err
					}
					waiting = false
				default:
					reader.poll(ctx)
				}
			}
		}
		return emit(line{"offsets": reader.found, "fetches": reader.fetches.take(), "deletes": trims})
	})
}

// closestAhead deletes what the consumer would read next.
func closestAhead(ctx context.Context, c *call) error {
	return withReader(ctx, c, func(reader *followersReader, admin *kadm.Client) error {
		reader.client.PauseFetchTopics(c.topic)
		for range 5 {
			reader.poll(ctx) // what was asked for before the pause is answered
		}
		if err := reader.produce(ctx, 30); err != nil {
			return err
		}
		if err := reader.delete(ctx, admin, 25); err != nil {
			return err
		}
		reader.fetches.take()
		reader.client.ResumeFetchTopics(c.topic)
		for len(reader.found) <= aheadRecords {
			reader.poll(ctx)
			if ctx.Err() != nil {
				return fmt.Errorf("nothing is read after the delete: %w", ctx.Err())
			}
		}
		return emit(line{"offset": reader.found[aheadRecords], "fetches": reader.fetches.take()})
	})
}

func (r *followersReader) produce(ctx context.Context, count int) error {
	records := make([]*kgo.Record, count)
	for n := range records {
		records[n] = &kgo.Record{Topic: r.topic, Value: []byte("record")}
	}
	return r.client.ProduceSync(ctx, records...).FirstErr()
}

func (r *followersReader) delete(ctx context.Context, admin *kadm.Client, before int64) error {
	wanted := kadm.Offsets{}
	wanted.Add(kadm.Offset{Topic: r.topic, Partition: 0, At: before, LeaderEpoch: -1})
	done, err := admin.DeleteRecords(ctx, wanted)
	if err != nil {
		return err
	}
	return done.Error()
}

func (r *followersReader) poll(ctx context.Context) {
	polling, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	for _, record := range r.client.PollFetches(polling).Records() {
		r.found = append(r.found, record.Offset)
	}
}

func (r *followersReader) readTo(ctx context.Context, count int) error {
	for len(r.found) < count {
		r.poll(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d records: %w", len(r.found), count, ctx.Err())
		}
	}
	return nil
}
