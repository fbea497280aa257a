// Linearizable checks the history of one partition with Porcupine: is there an order of its operations, each somewhere between its
// request and its answer, in which a log would have given those answers?
//
// Standard input has one JSON object a line. An operation without an answer may have taken effect between its request and the end of its
// connection, or never.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const limit = 4 * time.Minute

// Operation is a line: what was asked for, when (nanoseconds), and what was answered. Returned is 0 for one that may take effect at any
// time after its request.
type Operation struct {
	Client   int    `json:"client"`
	Kind     string `json:"kind"`
	Argument int    `json:"argument"`
	Called   int64  `json:"called"`
	Returned int64  `json:"returned"`
	Answered bool   `json:"answered"`
	Result   int    `json:"result"`
}

// Results of a read that found no record.
const (
	atTheEnd   = -1
	outOfRange = -2
)

// state of the log: its start, and the number of each record, in two bytes of a string, which can be compared.
type state struct {
	start int
	log   string
}

func (s state) end() int { return len(s.log) / 2 }

func (s state) record(offset int) int {
	return int(s.log[2*offset])<<8 | int(s.log[2*offset+1])
}

// answer is the definition of the log: what an operation answers, and the log after it.
func (s state) answer(asked Operation) (int, state) {
	switch asked.Kind {
	case "produce":
		offset := s.end()
		s.log += string([]byte{byte(asked.Argument >> 8), byte(asked.Argument)})
		return offset, s
	case "delete":
		if asked.Argument > s.end() {
			return outOfRange, s
		}
		s.start = max(s.start, asked.Argument)
		return s.start, s
	case "start":
		return s.start, s
	case "end":
		return s.end(), s
	case "read":
		switch {
		case asked.Argument < s.start || asked.Argument > s.end():
			return outOfRange, s
		case asked.Argument == s.end():
			return atTheEnd, s
		}
		return s.record(asked.Argument), s
	}
	panic("no such operation: " + asked.Kind)
}

// step gives the logs that an operation may leave: none if its answer is another, and two if it has none.
func step(before, input, _ any) []any {
	s, asked := before.(state), input.(Operation)
	result, after := s.answer(asked)
	switch {
	case !asked.Answered:
		return []any{s, after}
	case result != asked.Result:
		return nil
	}
	return []any{after}
}

func describe(input, _ any) string {
	asked := input.(Operation)
	return fmt.Sprintf("%s %d: %d (%v)", asked.Kind, asked.Argument, asked.Result, asked.Answered)
}

func main() {
	model := (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} }, Step: step, DescribeOperation: describe,
	}).ToModel()
	var history []porcupine.Operation
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked Operation
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		if asked.Returned == 0 {
			asked.Returned = math.MaxInt64
		}
		history = append(history, porcupine.Operation{
			ClientId: asked.Client, Input: asked, Call: asked.Called, Output: nil, Return: asked.Returned,
		})
	}
	result, info := porcupine.CheckOperationsVerbose(model, history, limit)
	fmt.Println(result)
	if result == porcupine.Illegal && len(os.Args) > 1 {
		if err := porcupine.VisualizePath(model, info, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}
