// Command franzgo does one thing that a test asks of franz-go and prints what came of it, one JSON object per line.
//
// It judges nothing: what is right, the test that runs it says. It ends with 1, and a sentence on standard error, only where the client
// itself gave up; an error that Kafka's protocol answers for a partition, a topic or a resource is a field of the line that tells of it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

var commands = map[string]func(context.Context, *call) error{
	"produce":             produce,
	"consume":             consume,
	"list-offsets":        listOffsets,
	"epoch-end":           epochEnd,
	"metadata":            metadata,
	"describe-cluster":    describeCluster,
	"api-versions":        apiVersions,
	"create-topic":        createTopic,
	"delete-topic":        deleteTopic,
	"describe-partitions": describePartitions,
	"create-partitions":   createPartitions,
	"describe-configs":    describeConfigs,
	"alter-configs":       alterConfigs,
	"list-configs":        listConfigs,
	"delete-records":      deleteRecords,
	"log-dirs":            logDirs,
	"producers":           producers,
	"work":                work,
	"closest":             closest,
	"closest-ahead":       closestAhead,
	"member":              member,
	"transform":           transform,
	"sharer":              sharer,
	"logins":              logins,
	"gaps":                gaps,
}

// A call is what the command line says. Each command reads the few fields that it needs.
type call struct {
	bootstrap  string
	versions   string
	topic      string
	partitions []int32
	count      int
	add        bool
	dry        bool
	legacy     bool
	each       bool
	generate   int
	plain      bool
	committed  bool
	codec      string
	maxBytes   int
	from       string
	reset      string
	rack       string
	at         string
	seek       int64
	again      int
	epoch      int
	offset     int64
	resource   string
	configs    configFlags
	group      string
	protocol   string
	pattern    string
	id         string
	out        string
	how        string
}

// configFlags are the -config flags in their order: name=value, or with a sign before: +name=value, -name=value, !name.
type configFlags []string

func (f *configFlags) String() string { return strings.Join(*f, " ") }

func (f *configFlags) Set(word string) error {
	*f = append(*f, word)
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "franzgo: %v\n", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 || commands[arguments[0]] == nil {
		return fmt.Errorf("the first argument is one of %s", strings.Join(slices.Sorted(maps.Keys(commands)), ", "))
	}
	set := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	c := &call{}
	set.StringVar(&c.bootstrap, "bootstrap", "127.0.0.1:9092", "addresses of brokers, with commas between")
	set.StringVar(&c.versions, "versions", "", "speak as a client of this Kafka release, such as 2.4")
	set.StringVar(&c.topic, "topic", "", "topic; for gaps several with commas between")
	partitions := set.String("partitions", "0", "partitions, such as 3 or 0-9")
	timeout := set.Duration("timeout", 30*time.Second, "give up after")
	set.IntVar(&c.count, "count", 1, "records to read, or partitions to make")
	set.BoolVar(&c.add, "add", false, "count is to be added to the partitions that there are")
	set.BoolVar(&c.dry, "dry", false, "only validate")
	set.BoolVar(&c.legacy, "legacy", false, "AlterConfigs, which replaces everything, instead of IncrementalAlterConfigs")
	set.BoolVar(&c.each, "each", false, "wait for each record before the next line is read")
	set.IntVar(&c.generate, "generate", 0, "produce so many numbered records instead of those of standard input")
	set.BoolVar(&c.plain, "plain", false, "produce without idempotence")
	set.BoolVar(&c.committed, "committed", false, "read committed records only")
	set.StringVar(&c.codec, "codec", "none", "compression of what is produced")
	set.IntVar(&c.maxBytes, "max-bytes", 1_000_012, "largest batch that the client sends")
	set.StringVar(&c.from, "from", "start", "where to begin: start, end, an offset, or @ and a time in milliseconds")
	set.StringVar(&c.reset, "reset", "none", "where to go when the position is out of range: none, start, or end where a command knows it")
	set.StringVar(&c.rack, "rack", "", "the rack in which the consumer is")
	set.StringVar(&c.at, "at", "end", "offsets to list: start, end, committed, max-timestamp, local-start, or @ and a time in milliseconds")
	set.Int64Var(&c.seek, "seek", -1, "after the first count: go on from this offset")
	set.IntVar(&c.again, "again", 0, "records to read after the seek")
	set.IntVar(&c.epoch, "epoch", 0, "leader epoch")
	set.Int64Var(&c.offset, "offset", -1, "first offset to keep; -1: the high watermark")
	set.StringVar(&c.resource, "resource", "topic", "whose configuration: topic or a broker's id")
	set.StringVar(&c.group, "group", "", "group of a member")
	set.StringVar(&c.protocol, "protocol", "classic", "who assigns partitions: classic for a member, consumer for the broker")
	set.StringVar(&c.pattern, "pattern", "", "subscribe to the topics that match it, instead of a topic")
	set.StringVar(&c.id, "id", "", "transactional id")
	set.StringVar(&c.out, "out", "", "topic to write to")
	set.StringVar(&c.how, "how", "accept", "what a member of a share group does with records: accept, release, reject, renew or hold")
	set.Var(&c.configs, "config", "name=value; to alter also +name=value, -name=value and !name")
	if err := set.Parse(arguments[1:]); err != nil {
		return err
	}
	if err := c.parsePartitions(*partitions); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	return commands[arguments[0]](ctx, c)
}

func (c *call) parsePartitions(text string) error {
	low, high, ranged := strings.Cut(text, "-")
	if !ranged {
		high = low
	}
	first, err := strconv.ParseInt(low, 10, 32)
	last, err2 := strconv.ParseInt(high, 10, 32)
	for partition := first; partition <= last; partition++ {
		c.partitions = append(c.partitions, int32(partition))
	}
	return errors.Join(err, err2)
}

// client connects with what every command has in common.
func (c *call) client(more ...kgo.Opt) (*kgo.Client, error) {
	// After an error, or for a topic that has just been made, the client asks for metadata again: at once here, after seconds by default.
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(c.bootstrap, ",")...), kgo.RetryTimeout(20 * time.Second), kgo.MetadataMinAge(50 * time.Millisecond)}
	if c.versions != "" {
		versions := kversion.FromString(c.versions)
		if versions == nil {
			return nil, fmt.Errorf("no release %q of Kafka is known", c.versions)
		}
		options = append(options, kgo.MaxVersions(versions))
	}
	return kgo.NewClient(append(options, more...)...)
}

// admin runs one call of kadm's.
func (c *call) admin(work func(*kadm.Client) error) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	return work(kadm.NewClient(client))
}

// emit prints one line at once, for a test may wait for it before it goes on.
func emit(line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(text, '\n'))
	return err
}

// word is Kafka's name of an error, another error's own words, or nothing.
func word(err error) string {
	if err == nil {
		return ""
	}
	if known, ok := errors.AsType[*kerr.Error](err); ok {
		return known.Message
	}
	return err.Error()
}
