package main

import (
	"context"
	"io"
	"os"
)

// interruptible calls a function that cannot be interrupted, such as a read. When the context ends it returns the cause, and leaves the call behind.
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

// interruptibleWriter is a writer whose writes end with the context. Nothing may be written after that.
type interruptibleWriter struct {
	ctx context.Context
	to  io.Writer
}

// Write implements io.Writer.
func (w interruptibleWriter) Write(p []byte) (int, error) {
	return interruptible(w.ctx, func() (int, error) { return w.to.Write(p) })
}

// openFile opens a file, which waits for the other end if it is a pipe. The wait ends with the context.
func openFile(ctx context.Context, name string, flag int) (*os.File, error) {
	return interruptible(ctx, func() (*os.File, error) { return os.OpenFile(name, flag, 0) })
}
