package main

import (
	"bytes"
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// interruptible calls a function that cannot be interrupted, such as a read. When the context ends,
// interruptible returns context.Cause at once. The call then goes on in its own goroutine, and its
// result is dropped.
func interruptible[T any](ctx context.Context, call func() (T, error)) (result T, err error) {
	type outcome struct {
		result T
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := call()
		done <- outcome{result, err}
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		return result, context.Cause(ctx)
	}
}

// interruptibleWriter is a writer whose Write returns when the context ends. The write to the
// underlying writer may then still be going on: after an error from Write, do not write again.
type interruptibleWriter struct {
	ctx context.Context
	to  io.Writer
}

// Write implements io.Writer.
func (w interruptibleWriter) Write(p []byte) (int, error) {
	own := bytes.Clone(p) // a write that goes on after the return must not use the caller's buffer
	return interruptible(w.ctx, func() (int, error) { return w.to.Write(own) })
}

// stdout returns the standard output of a command. A write ends when the program is told to stop,
// also if nobody reads the other end of a pipe.
func stdout(command *cobra.Command) io.Writer {
	return interruptibleWriter{command.Context(), command.OutOrStdout()}
}

// openFile opens a file. Opening a named pipe waits for the other end; the wait ends with the
// context.
func openFile(ctx context.Context, name string, flag int) (*os.File, error) {
	return interruptible(ctx, func() (*os.File, error) { return os.OpenFile(name, flag, 0) })
}
