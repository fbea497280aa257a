package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// line is a JSON object whose fields each command chooses.
type line map[string]any

// listOffsets prints a line for each partition of the topic.
func listOffsets(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		list := map[string]func(context.Context, ...string) (kadm.ListedOffsets, error){
			"start":         admin.ListStartOffsets,
			"end":           admin.ListEndOffsets,
			"committed":     admin.ListCommittedOffsets,
			"max-timestamp": admin.ListMaxTimestampOffsets,
			"local-start":   admin.ListLocalLogStartOffsets,
			"remote":        admin.ListLatestRemoteOffsets,
		}[c.at]
		if strings.HasPrefix(c.at, "@") {
			ms, err := strconv.ParseInt(c.at[1:], 10, 64)
			if err != nil {
				return err
			}
			list = func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
				return admin.ListOffsetsAfterMilli(ctx, ms, topics...)
			}
		}
		if list == nil {
			return fmt.Errorf("no offsets %q", c.at)
		}
		found, err := list(ctx, c.topic)
		if err != nil {
			return err
		}
		for _, offset := range found.Offsets().Sorted() {
			listed, _ := found.Lookup(offset.Topic, offset.Partition)
			if err := emit(line{
				"partition": listed.Partition, "offset": listed.Offset, "timestamp_ms": listed.Timestamp,
				"leader_epoch": listed.LeaderEpoch, "error": word(listed.Err),
			}); err != nil {
				return err
			}
		}
		return found.Error()
	})
}

// epochEnd prints where a leader epoch ends in each partition.
func epochEnd(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		var asked kadm.OffsetForLeaderEpochRequest
		for _, partition := range c.partitions {
			asked.Add(c.topic, partition, int32(c.epoch))
		}
		found, err := admin.OffsetForLeaderEpoch(ctx, asked)
		if err != nil {
			return err
		}
		for _, partition := range c.partitions {
			end := found[c.topic][partition]
			if err := emit(line{
				"partition": partition, "leader_epoch": end.LeaderEpoch, "end_offset": end.EndOffset, "error": word(end.Err),
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// metadata prints the cluster, its brokers, and each partition of the topic; without a topic, of all topics.
func metadata(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		var topics []string
		if c.topic != "" {
			topics = []string{c.topic}
		}
		found, err := admin.Metadata(ctx, topics...)
		if err != nil {
			return err
		}
		if err := emit(line{"cluster": found.Cluster, "controller": found.Controller}); err != nil {
			return err
		}
		for _, broker := range found.Brokers {
			if err := emit(line{"broker": broker.NodeID, "host": broker.Host, "port": broker.Port}); err != nil {
				return err
			}
		}
		for _, topic := range found.Topics.Sorted() {
			if err := emit(line{"topic": topic.Topic, "id": topic.ID.String(), "internal": topic.IsInternal, "error": word(topic.Err)}); err != nil {
				return err
			}
			for _, partition := range topic.Partitions.Sorted() {
				if err := emit(line{
					"topic": topic.Topic, "partition": partition.Partition, "leader": partition.Leader, "leader_epoch": partition.LeaderEpoch,
					"replicas": partition.Replicas, "isr": partition.ISR, "offline": partition.OfflineReplicas, "error": word(partition.Err),
				}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// describeCluster asks by DescribeCluster, which kadm itself doesn't use.
func describeCluster(ctx context.Context, c *call) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	asked := kmsg.NewPtrDescribeClusterRequest()
	asked.IncludeClusterAuthorizedOperations = true
	answer, err := asked.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	brokers := []line{}
	for _, broker := range answer.Brokers {
		brokers = append(brokers, line{"broker": broker.NodeID, "host": broker.Host, "port": broker.Port, "rack": broker.Rack})
	}
	return emit(line{
		"cluster": answer.ClusterID, "controller": answer.ControllerID, "brokers": brokers,
		"operations": answer.ClusterAuthorizedOperations, "error": word(kerr.ErrorForCode(answer.ErrorCode)),
	})
}

// describePartitions asks by DescribeTopicPartitions, `count` partitions an answer, and follows the cursor to the end.
func describePartitions(ctx context.Context, c *call) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	asked := kmsg.NewPtrDescribeTopicPartitionsRequest()
	topic := kmsg.NewDescribeTopicPartitionsRequestTopic()
	topic.Topic = c.topic
	asked.Topics = append(asked.Topics, topic)
	asked.ResponsePartitionLimit = int32(c.count)
	for {
		answer, err := asked.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		for _, topic := range answer.Topics {
			partitions := []line{}
			for _, partition := range topic.Partitions {
				partitions = append(partitions, line{
					"partition": partition.Partition, "leader": partition.LeaderID, "leader_epoch": partition.LeaderEpoch,
					"replicas": partition.Replicas, "isr": partition.ISR, "offline": partition.OfflineReplicas,
					"error": word(kerr.ErrorForCode(partition.ErrorCode)),
				})
			}
			if err := emit(line{
				"topic": topic.Topic, "id": kadm.TopicID(topic.TopicID).String(), "partitions": partitions,
				"error": word(kerr.ErrorForCode(topic.ErrorCode)),
			}); err != nil {
				return err
			}
		}
		if answer.NextCursor == nil {
			return nil
		}
		cursor := kmsg.NewDescribeTopicPartitionsRequestCursor()
		cursor.Topic, cursor.Partition = answer.NextCursor.Topic, answer.NextCursor.Partition
		asked.Cursor = &cursor
	}
}

// apiVersions prints each API of each broker by its name, and the release that franz-go takes the broker for.
func apiVersions(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		found, err := admin.ApiVersions(ctx)
		if err != nil {
			return err
		}
		for _, broker := range found.Sorted() {
			versions := map[string][2]int16{}
			broker.EachKeySorted(func(key, low, high int16) { versions[kmsg.NameForKey(key)] = [2]int16{low, high} })
			if err := emit(line{"broker": broker.NodeID, "versions": versions, "guess": broker.VersionGuess(), "error": word(broker.Err)}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *call) topicConfigs() map[string]*string {
	configs := map[string]*string{}
	for _, word := range c.configs {
		name, value, _ := strings.Cut(word, "=")
		configs[name] = &value
	}
	return configs
}

func createTopic(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		create := admin.CreateTopics
		if c.dry {
			create = admin.ValidateCreateTopics
		}
		answers, err := create(ctx, int32(c.count), 1, c.topicConfigs(), c.topic)
		if err != nil {
			return err
		}
		for _, answer := range answers.Sorted() {
			configs := map[string]*string{}
			for name, config := range answer.Configs {
				configs[name] = config.Value
			}
			if err := emit(line{
				"topic": answer.Topic, "id": answer.ID.String(), "partitions": answer.NumPartitions, "replicas": answer.ReplicationFactor,
				"configs": configs, "error": word(answer.Err), "message": answer.ErrMessage,
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

func deleteTopic(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		answers, err := admin.DeleteTopics(ctx, c.topic)
		if err != nil {
			return err
		}
		for _, answer := range answers.Sorted() {
			if err := emit(line{"topic": answer.Topic, "error": word(answer.Err), "message": answer.ErrMessage}); err != nil {
				return err
			}
		}
		return nil
	})
}

func createPartitions(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		create := map[[2]bool]func(context.Context, int, ...string) (kadm.CreatePartitionsResponses, error){
			{false, false}: admin.UpdatePartitions,
			{true, false}:  admin.CreatePartitions,
			{false, true}:  admin.ValidateUpdatePartitions,
			{true, true}:   admin.ValidateCreatePartitions,
		}[[2]bool{c.add, c.dry}]
		answers, err := create(ctx, c.count, c.topic)
		if err != nil {
			return err
		}
		for _, answer := range answers.Sorted() {
			if err := emit(line{"topic": answer.Topic, "error": word(answer.Err), "message": answer.ErrMessage}); err != nil {
				return err
			}
		}
		return nil
	})
}

// deleteRecords deletes below `offset` in each of the partitions.
func deleteRecords(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		offsets := kadm.Offsets{}
		for _, partition := range c.partitions {
			offsets.AddOffset(c.topic, partition, c.offset, -1)
		}
		answers, err := admin.DeleteRecords(ctx, offsets)
		if err != nil {
			return err
		}
		for _, answer := range answers.Sorted() {
			if err := emit(line{"partition": answer.Partition, "low_watermark": answer.LowWatermark, "error": word(answer.Err)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// logDirs prints each directory, with the partitions of the topic, or of all topics where none is given.
func logDirs(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		var asked kadm.TopicsSet
		if c.topic != "" {
			asked.Add(c.topic, c.partitions...)
		}
		answers, err := admin.DescribeAllLogDirs(ctx, asked)
		if err != nil {
			return err
		}
		for _, directory := range answers.Sorted() {
			partitions := []line{}
			for _, partition := range directory.Topics.Sorted() {
				partitions = append(partitions, line{
					"topic": partition.Topic, "partition": partition.Partition, "bytes": partition.Size,
					"lag": partition.OffsetLag, "future": partition.IsFuture,
				})
			}
			if err := emit(line{
				"broker": directory.Broker, "directory": directory.Dir, "partitions": partitions, "total_bytes": directory.TotalBytes,
				"usable_bytes": directory.UsableBytes, "cordoned": directory.IsCordoned, "error": word(directory.Err),
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// producers prints each partition with those who write into it.
func producers(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		var asked kadm.TopicsSet
		asked.Add(c.topic, c.partitions...)
		answers, err := admin.DescribeProducers(ctx, asked)
		if err != nil {
			return err
		}
		for _, topic := range answers.Sorted() {
			for _, partition := range topic.Partitions.Sorted() {
				found := []line{}
				for _, producer := range partition.ActiveProducers.Sorted() {
					found = append(found, line{
						"id": producer.ProducerID, "epoch": producer.ProducerEpoch, "last_sequence": producer.LastSequence,
						"last_timestamp_ms": producer.LastTimestamp, "coordinator_epoch": producer.CoordinatorEpoch,
						"transaction_start": producer.CurrentTxnStartOffset,
					})
				}
				if err := emit(line{
					"partition": partition.Partition, "leader": partition.Leader, "producers": found,
					"error": word(partition.Err), "message": partition.ErrMessage,
				}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
