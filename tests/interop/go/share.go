package main

import (
	"context"
	"fmt"
	"strings"
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
		kgo.ShareGroup(c.group), kgo.ConsumeTopics(strings.Split(c.topic, ",")...), kgo.ShareMaxRecords(perPoll), kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(outcome.note), kgo.MetadataMaxAge(time.Second))
	if err != nil {
		return err
	}
	ends := endOfInput()
	return pollUntil(ctx, ends, client, func(records []*kgo.Record) error {
		if err := printAll("got", records, nil); err != nil {
			return err
		}
		switch c.how {
		case "hold":
			<-ends
			return nil
		case "renew":
			if err := outcome.flush(ctx, client, kgo.AckRenew, records, "renewed"); err != nil {
				return err
			}
			return outcome.flush(ctx, client, kgo.AckAccept, records, "read")
		}
		statuses := map[string]kgo.AckStatus{"accept": kgo.AckAccept, "release": kgo.AckRelease, "reject": kgo.AckReject}
		return outcome.flush(ctx, client, statuses[c.how], records, "read")
	})
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
	err := printAll(what, records, o.failed)
	clear(o.failed)
	return err
}

func printAll(what string, records []*kgo.Record, failed map[string]error) error {
	for _, r := range records {
		at := fmt.Sprintf("%s-%d", r.Topic, r.Partition)
		printed := line{"what": what, "at": at, "offset": r.Offset, "count": r.DeliveryCount()}
		if failed[at] != nil {
			printed = line{"what": "refused", "at": at, "offset": r.Offset, "error": word(failed[at])}
		}
		if err := emit(printed); err != nil {
			return err
		}
	}
	return nil
}
