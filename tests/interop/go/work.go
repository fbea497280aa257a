package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	workPartitions = 3
	workPerTurn    = 5
	workTurn       = 10 * time.Millisecond
	workPerDelete  = 20
	settleLimit    = 20 * time.Second
)

// A worker is what the jobs of one run share: how far both consumers have read, and when to end.
type worker struct {
	c        *call
	ends     chan struct{}
	end      atomic.Int64
	assigned [workPartitions]atomic.Int64
	grouped  [workPartitions]atomic.Int64
}

// work is a producer, a consumer of given partitions, one in a group, and somebody who deletes what both have read: at work from the line
// "started" on, until standard input ends. The values of a partition are 0, 1, 2 and so on. It prints what `java/Work.java` prints.
func work(ctx context.Context, c *call) error {
	w := &worker{c: c, ends: make(chan struct{})}
	w.end.Store(-1)
	configs := map[string]*string{}
	err := c.admin(func(admin *kadm.Client) error {
		_, err := admin.CreateTopic(ctx, workPartitions, 3, configs, c.topic)
		return err
	})
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(w.ends)
	}()
	jobs := []func(context.Context) error{w.produce, w.readAssigned, w.readGroup, w.delete}
	faults := make([]error, len(jobs))
	var running sync.WaitGroup
	for n, job := range jobs {
		running.Go(func() { faults[n] = job(ctx) })
	}
	running.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return c.admin(func(admin *kadm.Client) error {
		committed, err := admin.FetchOffsets(ctx, c.topic)
		for _, place := range committed.Sorted() {
			err = errors.Join(err, emit(line{"what": "committed", "partition": place.Partition, "offset": place.At}))
		}
		return err
	})
}

func (w *worker) ended() bool {
	select {
	case <-w.ends:
		return true
	default:
		return false
	}
}

func (w *worker) produce(ctx context.Context) error {
	client, err := w.c.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer client.Close()
	var sent [workPartitions][]*kgo.Record
	var refused atomic.Pointer[error]
	next := 0
	for ; !w.ended(); time.Sleep(workTurn) {
		for range workPerTurn {
			for partition := range int32(workPartitions) {
				r := &kgo.Record{Topic: w.c.topic, Partition: partition, Value: []byte(strconv.Itoa(next))}
				sent[partition] = append(sent[partition], r)
				client.Produce(ctx, r, func(_ *kgo.Record, err error) {
					if err != nil {
						refused.Store(&err)
					}
				})
			}
			next++
		}
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if err := refused.Load(); err != nil {
		return *err
	}
	w.end.Store(int64(next))
	for partition, records := range sent {
		offsets := []int64{}
		for _, r := range records {
			offsets = append(offsets, r.Offset)
		}
		if err := emit(line{"what": "written", "partition": partition, "offsets": offsets}); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) readAssigned(ctx context.Context) error {
	places := map[int32]kgo.Offset{}
	for partition := range int32(workPartitions) {
		places[partition] = kgo.NoResetOffset().At(0)
	}
	assigned := map[string]map[int32]kgo.Offset{w.c.topic: places}
	client, err := w.c.client(kgo.ConsumePartitions(assigned), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if err != nil {
		return err
	}
	defer client.Close()
	return w.read(ctx, client, "assignment", &w.assigned, func() error { return nil })
}

func (w *worker) readGroup(ctx context.Context) error {
	client, err := w.c.client(
		kgo.ConsumerGroup(w.c.topic), kgo.ConsumeTopics(w.c.topic), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(300*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	return w.read(ctx, client, "group", &w.grouped, func() error { return client.CommitUncommittedOffsets(ctx) })
}

// read reads until everything that was written is read and committed, and prints it.
func (w *worker) read(ctx context.Context, client *kgo.Client, by string, positions *[workPartitions]atomic.Int64, commit func() error) error {
	offsets, values := [workPartitions][]int64{}, [workPartitions][]int64{}
	failed := []string{}
	started := false
	for w.end.Load() < 0 || !reached(positions, w.end.Load()) {
		polling, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		fetches := client.PollFetches(polling)
		cancel()
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", by, ctx.Err())
		}
		for _, fault := range fetches.Errors() {
			// A session that was lost with its coordinator is told, and joined anew.
			if _, session := errors.AsType[*kgo.ErrGroupSession](fault.Err); !session && !errors.Is(fault.Err, context.DeadlineExceeded) {
				return fmt.Errorf("%s, partition %d: %w", by, fault.Partition, fault.Err)
			}
		}
		read := fetches.Records()
		for _, r := range read {
			value, err := strconv.ParseInt(string(r.Value), 10, 64)
			if err != nil {
				return err
			}
			offsets[r.Partition], values[r.Partition] = append(offsets[r.Partition], r.Offset), append(values[r.Partition], value)
		}
		if err := commit(); err != nil {
			failed = append(failed, word(err))
			continue
		}
		for _, r := range read {
			positions[r.Partition].Store(r.Offset + 1)
		}
		if !started && reached(positions, 1) {
			started = true
			if err := emit(line{"what": "started", "by": by}); err != nil {
				return err
			}
		}
	}
	for partition := range workPartitions {
		told := line{"what": "read", "by": by, "partition": partition, "offsets": offsets[partition], "values": values[partition]}
		if err := emit(told); err != nil {
			return err
		}
	}
	return emit(line{"what": "commits that failed", "by": by, "errors": failed})
}

func reached(positions *[workPartitions]atomic.Int64, least int64) bool {
	for n := range positions {
		if positions[n].Load() < least {
			return false
		}
	}
	return true
}

// delete deletes what everybody has read, now and then, to one record before it.
func (w *worker) delete(ctx context.Context) error {
	return w.c.admin(func(admin *kadm.Client) error {
		lows := [workPartitions][]int64{}
		for ; !w.ended(); time.Sleep(workPerDelete * workTurn) {
			wanted := kadm.Offsets{}
			for partition := range int32(workPartitions) {
				before := min(w.assigned[partition].Load(), w.grouped[partition].Load()) - 1
				if before > 0 {
					wanted.Add(kadm.Offset{Topic: w.c.topic, Partition: partition, At: before, LeaderEpoch: -1})
				}
			}
			if len(wanted) == 0 {
				continue
			}
			done, err := admin.DeleteRecords(ctx, wanted)
			if err != nil {
				continue // a broker has gone: what was asked is asked again at the next turn
			}
			for _, row := range done.Sorted() {
				asked, _ := wanted.Lookup(row.Topic, row.Partition)
				if row.Err == nil && row.LowWatermark < asked.At {
					return fmt.Errorf("partition %d has its low watermark at %d after a delete to %d", row.Partition, row.LowWatermark, asked.At)
				}
				if row.Err == nil {
					lows[row.Partition] = append(lows[row.Partition], row.LowWatermark)
				}
			}
		}
		for partition := range lows {
			if err := emit(line{"what": "deleted", "partition": partition, "lows": lows[partition]}); err != nil {
				return err
			}
		}
		return nil
	})
}
