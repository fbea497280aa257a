// Command readers reads partition 0 of topics with kafka-go or sarama, in both isolation levels, until standard input ends. It prints each
// record, and the reader's position where the client has one, one JSON object per line. It judges nothing.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
)

const wait = 2000 * time.Millisecond

var output sync.Mutex

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "readers CLIENT BOOTSTRAP TOPIC,TOPIC")
		os.Exit(2)
	}
	bootstrap, topics := os.Args[2], strings.Split(os.Args[3], ",")
	ctx, cancel := context.WithCancel(context.Background())
	read := map[string]func(context.Context, string, string, bool) error{"kafka-go": readKafkaGo, "sarama": readSarama}[os.Args[1]]
	var readers sync.WaitGroup
	for _, committed := range []bool{false, true} {
		for _, topic := range topics {
			readers.Go(func() {
				if err := read(ctx, bootstrap, topic, committed); err != nil {
					emit(map[string]any{"what": "failed", "topic": topic, "error": err.Error()})
				}
			})
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	readers.Wait()
	emit(map[string]any{"what": "left"})
}

func readKafkaGo(ctx context.Context, bootstrap, topic string, committed bool) error {
	level := kafka.ReadUncommitted
	if committed {
		level = kafka.ReadCommitted
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, Topic: topic, Partition: 0, IsolationLevel: level, MinBytes: 1, MaxBytes: 10 << 20, MaxWait: wait,
		ReadLagInterval: -1, ErrorLogger: kafka.LoggerFunc(func(text string, values ...any) {
			emit(map[string]any{"what": "complaint", "topic": topic, "isolation": isolation(committed), "text": fmt.Sprintf(text, values...)})
		})})
	defer reader.Close()
	for {
		message, err := reader.ReadMessage(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		got(topic, committed, message.Offset, message.Key)
	}
}

func readSarama(ctx context.Context, bootstrap, topic string, committed bool) error {
	config := sarama.NewConfig()
	config.Consumer.MaxWaitTime = wait
	config.Consumer.Return.Errors = true
	if committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer partition.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-partition.Errors():
			return err
		case message := <-partition.Messages():
			got(topic, committed, message.Offset, message.Key)
		}
	}
}

func isolation(committed bool) string {
	if committed {
		return "read_committed"
	}
	return "read_uncommitted"
}

func got(topic string, committed bool, offset int64, key []byte) {
	emit(map[string]any{"what": "got", "isolation": isolation(committed), "topic": topic, "offset": offset, "key": string(key)})
}

func emit(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}
