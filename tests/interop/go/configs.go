package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
)

// broker is the id that -resource gives.
func (c *call) broker() (int32, error) {
	id, err := strconv.ParseInt(c.resource, 10, 32)
	return int32(id), err
}

// describeConfigs prints each configuration key of the resource.
func describeConfigs(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		var found kadm.ResourceConfigs
		var err error
		if c.resource == "topic" {
			found, err = admin.DescribeTopicConfigs(ctx, c.topic)
		} else {
			var id int32
			if id, err = c.broker(); err == nil {
				found, err = admin.DescribeBrokerConfigs(ctx, id)
			}
		}
		if err != nil {
			return err
		}
		for _, resource := range found {
			if resource.Err != nil {
				if err := emit(line{"resource": resource.Name, "error": word(resource.Err), "message": resource.ErrMessage}); err != nil {
					return err
				}
			}
			for _, config := range resource.Configs {
				synonyms := []line{}
				for _, synonym := range config.Synonyms {
					synonyms = append(synonyms, line{"name": synonym.Key, "value": synonym.Value, "source": synonym.Source.String()})
				}
				if err := emit(line{
					"resource": resource.Name, "name": config.Key, "value": config.Value, "sensitive": config.Sensitive,
					"source": config.Source.String(), "synonyms": synonyms, "error": "",
				}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// alterations are the -config flags: name=value sets, +name=value appends to a list, -name=value takes from it, !name goes back to the default.
func (c *call) alterations() []kadm.AlterConfig {
	var all []kadm.AlterConfig
	for _, word := range c.configs {
		operation := kadm.SetConfig
		switch word[0] {
		case '+':
			operation = kadm.AppendConfig
		case '-':
			operation = kadm.SubtractConfig
		case '!':
			operation = kadm.DeleteConfig
		}
		name, value, given := strings.Cut(strings.TrimLeft(word, "+-!"), "=")
		altered := kadm.AlterConfig{Op: operation, Name: name}
		if given {
			altered.Value = &value
		}
		all = append(all, altered)
	}
	return all
}

func alterConfigs(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		var answers kadm.AlterConfigsResponses
		var err error
		if c.resource == "topic" {
			alter := map[[2]bool]func(context.Context, []kadm.AlterConfig, ...string) (kadm.AlterConfigsResponses, error){
				{false, false}: admin.AlterTopicConfigs,
				{true, false}:  admin.AlterTopicConfigsState,
				{false, true}:  admin.ValidateAlterTopicConfigs,
				{true, true}:   admin.ValidateAlterTopicConfigsState,
			}[[2]bool{c.legacy, c.dry}]
			answers, err = alter(ctx, c.alterations(), c.topic)
		} else {
			alter := map[[2]bool]func(context.Context, []kadm.AlterConfig, ...int32) (kadm.AlterConfigsResponses, error){
				{false, false}: admin.AlterBrokerConfigs,
				{true, false}:  admin.AlterBrokerConfigsState,
				{false, true}:  admin.ValidateAlterBrokerConfigs,
				{true, true}:   admin.ValidateAlterBrokerConfigsState,
			}[[2]bool{c.legacy, c.dry}]
			var id int32
			if id, err = c.broker(); err == nil {
				answers, err = alter(ctx, c.alterations(), id)
			}
		}
		if err != nil {
			return err
		}
		for _, answer := range answers {
			if err := emit(line{"resource": answer.Name, "error": word(answer.Err), "message": answer.ErrMessage}); err != nil {
				return err
			}
		}
		return nil
	})
}

// listConfigs prints the resources that have a configuration.
func listConfigs(ctx context.Context, c *call) error {
	return c.admin(func(admin *kadm.Client) error {
		found, err := admin.ListConfigResources(ctx)
		if err != nil {
			return err
		}
		if found.Err != nil {
			return fmt.Errorf("ListConfigResources: %w", found.Err)
		}
		for _, resource := range found.Resources {
			if err := emit(line{"type": fmt.Sprint(resource.Type), "name": resource.Name}); err != nil {
				return err
			}
		}
		return nil
	})
}
