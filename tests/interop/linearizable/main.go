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
	absent     = -3
)

// nothing is the end of the last erasure of a log without one.
const nothing = -1

// In place of a record's number: it is erased, or it is the control record of an erasure.
const (
	erased  = 0xffff
	erasure = 0xfffe
)

// state of the log: its start, the end of its last erasure, and the number of each record, in two bytes of a string, which can be compared.
type state struct {
	start    int
	erasures int
	log      string
}

func (s state) end() int { return len(s.log) / 2 }

func (s state) record(offset int) int {
	return int(s.log[2*offset])<<8 | int(s.log[2*offset+1])
}

func (s state) with(record int) state {
	s.log += string([]byte{byte(record >> 8), byte(record)})
	return s
}

// erase gives the logs that an erasure may leave if it answered result. It hides the record and appends an erasure that names it. If the
// record is gone, it answers where the last erasure ends, or appends one all the same: it may have found the record before.
func (s state) erase(offset, result int) []any {
	isThere := offset >= s.start && s.record(offset) < erasure
	if !isThere && (result == s.erasures || result == nothing && s.erasures <= s.start) {
		return []any{s}
	}
	if result != s.end()+1 {
		return nil
	}
	return []any{s.erased(offset)}
}

func (s state) erased(offset int) state {
	if s.record(offset) < erasure {
		s.log = s.log[:2*offset] + "\xff\xff" + s.log[2*offset+2:]
	}
	s = s.with(erasure)
	s.erasures = s.end()
	return s
}

// answer is the definition of the log: what an operation answers, and the log after it.
func (s state) answer(asked Operation) (int, state) {
	switch asked.Kind {
	case "produce":
		return s.end(), s.with(asked.Argument)
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
		case s.record(asked.Argument) >= erasure:
			return absent, s
		}
		return s.record(asked.Argument), s
	}
	panic("no such operation: " + asked.Kind)
}

// step gives the logs that an operation may leave: none if its answer is another, and two if it has none.
func step(before, input, _ any) []any {
	s, asked := before.(state), input.(Operation)
	if asked.Kind == "erase" {
		switch {
		case asked.Argument >= s.end():
			return nil // Records that were acknowledged are erased: this one is produced before.
		case !asked.Answered:
			return []any{s, s.erased(asked.Argument)}
		}
		return s.erase(asked.Argument, asked.Result)
	}
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
		Init: func() []any { return []any{state{erasures: nothing}} }, Step: step, DescribeOperation: describe,
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
