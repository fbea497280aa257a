package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const generatedBytes = 500

// A header keeps its place among others of the same name.
type header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// A record is one as it is read from standard input or printed; keys and values in base64, null is null.
type record struct {
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	TimestampMs int64    `json:"timestamp_ms"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
	Codec       string   `json:"codec"`
	LeaderEpoch int32    `json:"leader_epoch"`
	ProducerID  int64    `json:"producer_id"`
	Error       string   `json:"error"`
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

var codecNames = []string{"none", "gzip", "snappy", "lz4", "zstd"}

func (r *record) toSend(topic string) *kgo.Record {
	sent := &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
	if r.TimestampMs > 0 {
		sent.Timestamp = time.UnixMilli(r.TimestampMs)
	}
	for _, h := range r.Headers {
		sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	return sent
}

// result is a line about a record that was produced; it leaves out what the test knows.
func result(r *kgo.Record, err error) record {
	return record{Partition: r.Partition, Offset: r.Offset, TimestampMs: r.Timestamp.UnixMilli(), ProducerID: r.ProducerID, Error: word(err)}
}

func received(r *kgo.Record) record {
	got := record{
		Partition:   r.Partition,
		Offset:      r.Offset,
		TimestampMs: r.Timestamp.UnixMilli(),
		Key:         r.Key,
		Value:       r.Value,
		Headers:     []header{},
		Codec:       codecNames[r.Attrs.CompressionType()],
		LeaderEpoch: r.LeaderEpoch,
		ProducerID:  r.ProducerID,
	}
	for _, h := range r.Headers {
		got.Headers = append(got.Headers, header{h.Key, h.Value})
	}
	return got
}

// produce sends the records of standard input and prints one line for each, in their order.
func produce(ctx context.Context, c *call) error {
	codec, known := codecs[c.codec]
	if !known {
		return fmt.Errorf("no codec %q", c.codec)
	}
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec),
		kgo.ProducerBatchMaxBytes(int32(c.maxBytes)),
		kgo.BrokerMaxWriteBytes(int32(2*c.maxBytes) + 100<<20),
	}
	if c.plain {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := c.client(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	if c.generate > 0 {
		return generate(ctx, c, client)
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	var all []*kgo.Record
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		} else if err != nil {
			return err
		}
		var given record
		if err := json.Unmarshal(line, &given); err != nil {
			return err
		}
		sent := given.toSend(c.topic)
		if !c.each {
			all = append(all, sent)
			continue
		}
		r, err := client.ProduceSync(ctx, sent).First()
		if err := emit(result(r, err)); err != nil {
			return err
		}
	}
	for _, done := range client.ProduceSync(ctx, all...) {
		if err := emit(result(done.Record, done.Err)); err != nil {
			return err
		}
	}
	return nil
}

// generate sends as many records as were asked for and prints one line about all of them. Values are numbers. It takes a rest now and then,
// so that a test has the time to do something meanwhile.
func generate(ctx context.Context, c *call, client *kgo.Client) error {
	var refused atomic.Int64
	for n := range c.generate {
		sent := &kgo.Record{Topic: c.topic, Partition: c.partitions[0], Value: fmt.Appendf(nil, "%0*d", generatedBytes, n)}
		client.Produce(ctx, sent, func(_ *kgo.Record, err error) {
			if err != nil {
				refused.Add(1)
			}
		})
		if n%100 == 99 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return emit(line{"sent": c.generate, "refused": refused.Load()})
}

func (c *call) start() (kgo.Offset, error) {
	offset := kgo.NewOffset()
	if c.reset == "none" {
		offset = kgo.NoResetOffset()
	}
	switch {
	case c.from == "start":
		return offset.AtStart(), nil
	case c.from == "end":
		return offset.AtEnd(), nil
	case strings.HasPrefix(c.from, "@"):
		ms, err := strconv.ParseInt(c.from[1:], 10, 64)
		return offset.AfterMilli(ms), err
	}
	at, err := strconv.ParseInt(c.from, 10, 64)
	return offset.At(at), err
}

// consume reads `count` records of the assigned partitions and prints them, then perhaps seeks and reads `again` more. An error of a
// partition is a line too, and the end.
func consume(ctx context.Context, c *call) error {
	start, err := c.start()
	if err != nil {
		return err
	}
	assigned := map[int32]kgo.Offset{}
	for _, partition := range c.partitions {
		assigned[partition] = start
	}
	options := []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: assigned}), kgo.FetchMaxWait(100 * time.Millisecond)}
	if c.reset == "none" {
		options = append(options, kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	} else {
		options = append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	if c.committed {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	client, err := c.client(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	if more, err := c.read(ctx, client, c.count); err != nil || !more || c.seek < 0 {
		return err
	}
	places := map[int32]kgo.EpochOffset{}
	for _, partition := range c.partitions {
		places[partition] = kgo.EpochOffset{Epoch: -1, Offset: c.seek}
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{c.topic: places})
	_, err = c.read(ctx, client, c.again)
	return err
}

// read prints the next `count` records and returns whether there was no error of a partition.
func (c *call) read(ctx context.Context, client *kgo.Client, count int) (bool, error) {
	for count > 0 {
		fetches := client.PollRecords(ctx, count)
		if err := fetches.Err0(); err != nil && ctx.Err() != nil {
			return false, fmt.Errorf("%d records did not come: %w", count, err)
		}
		for _, fault := range fetches.Errors() {
			return false, emit(record{Partition: fault.Partition, Error: word(fault.Err)})
		}
		for _, r := range fetches.Records() {
			if err := emit(received(r)); err != nil {
				return false, err
			}
			count--
		}
	}
	return true, nil
}
