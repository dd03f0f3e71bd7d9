package main

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"holdfast/internal/durable"
)

// output is a file that a command writes.
type output struct {
	// whole writes the complete content to a file of the given name, which exists and is empty.
	whole func(partial string) error
	// stream writes the content to a pipe or a device.
	stream func(io.Writer) error
}

// write writes the output to the file of a name. It writes a temporary file in the same folder and
// renames it, so that the file of the name is always complete. It follows a symbolic link. For a
// pipe or a device it calls stream, because renaming would replace these.
func (o *output) write(ctx context.Context, name string) error {
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return usagef("%s is a folder", name)
	case err == nil && isStdout(info):
		// not opened again: the open file shares its offset with other commands
		return o.stream(os.Stdout)
	case err == nil && !info.Mode().IsRegular():
		return o.writeStream(ctx, name)
	}
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	} else if _, linkErr := os.Readlink(name); linkErr == nil { // renaming would replace it
		return usagef("%s is a link to a file that is not there: %v", name, err)
	}
	// a name of its own: another command may write FILE, too
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.part")
	if err != nil {
		return err
	}
	partial := file.Name()
	_ = file.Close() // nothing was written
	if err = o.whole(partial); err == nil {
		err = os.Rename(partial, name)
	}
	if err != nil {
		_ = os.Remove(partial) // the earlier error is returned
		return err
	}
	return durable.SyncDir(filepath.Dir(name))
}

// isStdout reports whether a file is the standard output, as /dev/stdout is.
func isStdout(info os.FileInfo) bool {
	stdout, err := os.Stdout.Stat()
	return err == nil && os.SameFile(info, stdout)
}

func (o *output) writeStream(ctx context.Context, name string) error {
	file, err := openFile(ctx, name, os.O_WRONLY)
	if err != nil {
		return err
	}
	err = o.stream(file)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// saveTo makes a file, or empties it, and writes and syncs its content.
func saveTo(name string, write func(io.Writer) error) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}
