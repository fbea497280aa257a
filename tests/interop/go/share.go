package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const perPoll = 10

// sharer is a member of a share group (KIP-932) until standard input ends. It prints each record that it gets, and again once its
// acknowledgement is stored, as `java/Sharer.java` does. With `how` it accepts, releases, rejects or holds records, or renews and then accepts them.
func sharer(ctx context.Context, c *call) error {
	outcome := outcomes{failed: map[string]error{}}
	client, err := c.client(
		kgo.ShareGroup(c.group), kgo.ConsumeTopics(c.topic), kgo.ShareMaxRecords(perPoll), kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(outcome.note), kgo.MetadataMaxAge(time.Second))
	if err != nil {
		return err
	}
	ends := endOfInput()
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
		if err := tellAll("got", read.Records(), nil); err != nil {
			return err
		}
		switch c.how {
		case "hold":
			<-ends
			client.Close()
			return emit(line{"what": "left"})
		case "renew":
			if err := outcome.flush(ctx, client, kgo.AckRenew, read.Records(), "renewed"); err != nil {
				return err
			}
			if err := outcome.flush(ctx, client, kgo.AckAccept, read.Records(), "read"); err != nil {
				return err
			}
		default:
			statuses := map[string]kgo.AckStatus{"accept": kgo.AckAccept, "release": kgo.AckRelease, "reject": kgo.AckReject}
			if err := outcome.flush(ctx, client, statuses[c.how], read.Records(), "read"); err != nil {
				return err
			}
		}
	}
}

// outcomes has the errors of partitions since the last flush.
type outcomes struct {
	lock   sync.Mutex
	failed map[string]error
}

func (o *outcomes) note(_ *kgo.Client, results kgo.ShareAckResults) {
	o.lock.Lock()
	defer o.lock.Unlock()
	for _, each := range results {
		if each.Err != nil {
			o.failed[fmt.Sprintf("%s-%d", each.Topic, each.Partition)] = each.Err
		}
	}
}

func (o *outcomes) flush(ctx context.Context, client *kgo.Client, status kgo.AckStatus, records []*kgo.Record, what string) error {
	client.MarkAcks(status, records...)
	if err := client.FlushAcks(ctx); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	err := tellAll(what, records, o.failed)
	clear(o.failed)
	return err
}

func tellAll(what string, records []*kgo.Record, failed map[string]error) error {
	for _, r := range records {
		at := fmt.Sprintf("%s-%d", r.Topic, r.Partition)
		told := line{"what": what, "at": at, "offset": r.Offset, "count": r.DeliveryCount()}
		if failed[at] != nil {
			told = line{"what": "refused", "at": at, "offset": r.Offset, "error": word(failed[at])}
		}
		if err := emit(told); err != nil {
			return err
		}
	}
	return nil
}
