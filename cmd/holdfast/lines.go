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

// lineOrError is a line without its line end, or the error of reading it.
type lineOrError struct {
	line []byte
	err  error
}

// readLines returns the lines with their numbers, from 1 on. After an error the caller must stop.
// When the context ends, the error is its context.Cause. A read cannot be interrupted. A read that
// is under way when the context ends goes on in its own goroutine.
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
					if ctx.Err() != nil {
						// the reading goroutine has stopped because the context ended
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

// readLine returns the next line without its line end, and io.EOF after the last one. A line of
// more than maxLine bytes is an error.
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
