package main

import (
	"context"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"holdfast/test/sim"
	"holdfast/test/sim/schedule"
)

// errDiverged says that a run could not be repeated.
var errDiverged = errors.New("the order of goroutines is not the same each time")

// compare runs each pair twice, the second time with more logging, and compares all switches
// between goroutines.
func (o *options) compare(ctx context.Context, folder string) error {
	program, err := build(ctx, folder)
	if err != nil {
		return err
	}
	o.report = ""
	next := make(chan pair)
	go func() {
		defer close(next)
		for _, p := range o.pairs() {
			select {
			case next <- p:
			case <-ctx.Done():
				return
			}
		}
	}()
	var working sync.WaitGroup
	var printing sync.Mutex
	var faults []error
	same := 0
	for range o.workers {
		working.Go(func() {
			for p := range next {
				line, err := o.twice(ctx, folder, program, p)
				printing.Lock()
				fmt.Println(line)
				if err != nil {
					faults = append(faults, err)
				} else {
					same++
				}
				printing.Unlock()
			}
		})
	}
	working.Wait()
	fmt.Printf("%d of %d runs were the same twice\n", same, len(o.pairs()))
	return errors.Join(append(faults, ctx.Err())...)
}

// twice runs a pair twice and describes what came of it.
func (o *options) twice(ctx context.Context, folder, program string, p pair) (string, error) {
	var results [2]*sim.Result
	var files [2]string
	for i := range results {
		again := *o
		if again.verbose = i == 1; again.verbose { // what is logged must not change the run
			again.report = filepath.Join(folder, "report")
		}
		again.switches = filepath.Join(folder,
			fmt.Sprintf("switches-%d-%d-%d", p.seed, p.schedule, i))
		defer func() { _ = os.Remove(again.switches) }()
		result, err := again.run(ctx, program, p)
		if err != nil {
			return err.Error(), err
		}
		results[i], files[i] = result, again.switches
	}
	for _, result := range results {
		if result.Summary == (schedule.Summary{}) { // the run did not finish
			err := fmt.Errorf("seed %d, schedule %d: %s", p.seed, p.schedule,
				result.Violations[0].Text)
			return err.Error(), err
		}
	}
	if results[0].Summary == results[1].Summary {
		return fmt.Sprintf("seed %d, schedule %d: the same %d switches twice, hash %016x", p.seed,
			p.schedule, results[0].Summary.Switches, results[0].Summary.Hash), nil
	}
	where, err := firstDifference(program, files)
	if err != nil {
		where = err.Error()
	}
	return fmt.Sprintf("seed %d, schedule %d: NOT THE SAME:\n%s", p.seed, p.schedule, where),
		fmt.Errorf("seed %d, schedule %d: %w", p.seed, p.schedule, errDiverged)
}

// firstDifference describes the first switch that differs, with what both goroutines were doing.
func firstDifference(program string, files [2]string) (string, error) {
	var readers [2]io.Reader
	for i, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer func() { _ = file.Close() }() // only read
		readers[i] = file
	}
	symbols, err := symbolTable(program)
	if err != nil {
		return "", err
	}
	const chunk = 4096
	size := binary.Size(schedule.Switch{})
	for at := 0; ; {
		var chunks [2][]byte
		for i, r := range readers {
			chunks[i] = make([]byte, chunk*size)
			n, err := io.ReadFull(r, chunks[i])
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return "", err
			}
			chunks[i] = chunks[i][:n/size*size]
		}
		for offset := 0; ; offset, at = offset+size, at+1 {
			a, b := chunks[0][offset:min(offset+size, len(chunks[0]))],
				chunks[1][offset:min(offset+size, len(chunks[1]))]
			if string(a) == string(b) && len(a) > 0 {
				if offset+size >= len(chunks[0]) && offset+size >= len(chunks[1]) {
					at++
					break
				}
				continue
			}
			if len(a) == 0 && len(b) == 0 {
				return "all recorded switches are the same: the runs differ later, or in what they drew after the last", nil
			}
			return fmt.Sprintf("switch %d\nfirst run:\n%ssecond run:\n%s", at, describe(symbols, a),
				describe(symbols, b)), nil
		}
	}
}

// symbolTable reads the functions of a program.
func symbolTable(program string) (*gosym.Table, error) {
	file, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	lines, text := file.Section(".gopclntab"), file.Section(".text")
	if lines == nil || text == nil {
		return nil, fmt.Errorf("%s has no .gopclntab or .text section", program)
	}
	data, err := lines.Data()
	if err != nil {
		return nil, err
	}
	return gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
}

// describe says what a goroutine was doing when it was switched to.
func describe(symbols *gosym.Table, encoded []byte) string {
	if len(encoded) == 0 {
		return "\tthe run had ended\n"
	}
	var s schedule.Switch
	if _, err := binary.Decode(encoded, binary.LittleEndian, &s); err != nil {
		return "\t" + err.Error() + "\n"
	}
	const begin = 946684800 * 1e9 // where virtual time begins: 2000-01-01 in nanoseconds since 1970
	var b strings.Builder
	fmt.Fprintf(&b, "\tgoroutine %d after %.6f s, generator at %016x\n", s.Goroutine,
		(float64(s.Now)-begin)/1e9, s.State)
	for _, pc := range append([]uint64{s.PC}, s.Frames[:]...) {
		if file, line, function := symbols.PCToLine(pc); function != nil && pc != 0 {
			fmt.Fprintf(&b, "\t\t%s\n\t\t\t%s:%d\n", function.Name, file, line)
		}
	}
	return b.String()
}
