package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
)

// lineOrError is a line without its end, or why there is none.
type lineOrError struct {
	line []byte
	err  error
}

// readLines returns the lines with their numbers, from 1 on. An error comes in place of a line, and the caller must stop then. When the context ends, the
// error is context.Cause of it. A read cannot be interrupted: one that is under way then goes on in its own goroutine.
func readLines(ctx context.Context, in io.Reader) iter.Seq2[int, lineOrError] {
	return func(yield func(int, lineOrError) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		texts := make(chan lineOrError)
		go func() {
			defer close(texts)
			for lines := bufio.NewReaderSize(in, 64<<10); ; {
				line, err := readLine(lines)
				if errors.Is(err, io.EOF) {
					return
				}
				select {
				case texts <- lineOrError{line, err}:
				case <-ctx.Done():
					return
				}
			}
		}()
		for number := 1; ; number++ {
			select {
			case text, more := <-texts:
				if !more {
					if ctx.Err() != nil { // the reader has stopped because of that
						yield(number, lineOrError{err: context.Cause(ctx)})
					}
					return
				}
				if !yield(number, text) {
					return
				}
			case <-ctx.Done():
				yield(number, lineOrError{err: context.Cause(ctx)})
				return
			}
		}
	}
}

// readLine returns the next line without its end, and io.EOF after the last one. A line of more than maxLine bytes is an error.
func readLine(lines *bufio.Reader) (line []byte, err error) {
	for {
		part, err := lines.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("a line is longer than %d bytes", maxLine)
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return bytes.TrimRight(line, "\r\n"), nil
		default:
			return nil, err
		}
	}
}
