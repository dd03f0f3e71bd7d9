package main

import (
	"context"
	"io"
	"os"
)

// interruptible is a writer whose writes end with the context. A write cannot be interrupted, so it is left behind: nothing may be written after that.
type interruptible struct {
	ctx context.Context
	to  io.Writer
}

// Write implements io.Writer.
func (w interruptible) Write(p []byte) (n int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = w.to.Write(p)
	}()
	select {
	case <-done:
		return n, err
	case <-w.ctx.Done():
		return 0, context.Cause(w.ctx)
	}
}

// openFile opens a file, which waits for the other end if it is a pipe. The wait ends with the context.
func openFile(ctx context.Context, name string, flag int) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		file, err := os.OpenFile(name, flag, 0)
		done <- opened{file, err}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
