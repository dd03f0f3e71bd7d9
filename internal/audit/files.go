package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// files is the file that is written to, and the earlier ones beside it. It belongs to one goroutine.
type files struct {
	config Config
	file   *os.File
	size   int64 // of what was written whole
}

// openFiles opens the file, and returns the place of its last line. The rest of a line that was not finished is taken away.
func openFiles(config Config) (*files, place, error) {
	f := &files{config: config}
	if err := os.MkdirAll(filepath.Dir(config.File), 0o700); err != nil {
		return nil, place{}, err
	}
	if err := f.begin(); err != nil {
		return nil, place{}, err
	}
	last, end, err := scan(f.file)
	if err == nil && end < f.size {
		f.size = end
		err = f.file.Truncate(end)
	}
	if err == nil && last.Index == 0 { // nothing in it yet: the one before it has the last line
		last, err = lastOf(f.name(1))
	}
	if err != nil {
		return nil, place{}, errors.Join(err, f.file.Close())
	}
	if last.Member != config.Member {
		return f, place{}, nil
	}
	return f, place{last.Term, last.Index, last.Position}, nil
}

func (f *files) name(number int) string { return fmt.Sprintf("%s.%d", f.config.File, number) }

func (f *files) begin() error {
	file, err := os.OpenFile(f.config.File, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

func lastOf(name string) (Record, error) {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, nil
	}
	if err != nil {
		return Record{}, err
	}
	last, _, err := scan(file)
	return last, errors.Join(err, file.Close())
}

// scan returns the record of the last line that is one, and where the last whole line ends. It looks at the end of the file first, and
// further back until it finds one.
func scan(file *os.File) (last Record, end int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return last, 0, err
	}
	for look := int64(1 << 20); ; look *= 4 {
		from := max(0, info.Size()-look)
		tail := make([]byte, info.Size()-from)
		if _, err := io.ReadFull(io.NewSectionReader(file, from, int64(len(tail))), tail); err != nil {
			return last, 0, err
		}
		tail = tail[:bytes.LastIndexByte(tail, '\n')+1]
		end = from + int64(len(tail))
		for len(tail) > 0 {
			line := tail[bytes.LastIndexByte(tail[:len(tail)-1], '\n')+1:]
			if json.Unmarshal(line, &last) == nil && last.Index > 0 {
				return last, end, nil
			}
			last, tail = Record{}, tail[:len(tail)-len(line)]
		}
		if from == 0 {
			return Record{}, end, nil
		}
	}
}

// append adds whole lines, to the next file when this one is large enough. What cannot be written whole is taken back.
func (f *files) append(lines []byte) error {
	if f.size > 0 && f.size+int64(len(lines)) > f.config.MaxBytes {
		f.rotate()
	}
	written, err := f.file.Write(lines)
	if err != nil {
		if written > 0 {
			err = errors.Join(err, f.file.Truncate(f.size))
		}
		return err
	}
	f.size += int64(written)
	return nil
}

// rotate begins the next file. The oldest of those that are kept goes. Where that cannot be done the file goes on: a file that is too large
// is better than lines that are lost.
func (f *files) rotate() {
	last := f.file
	if err := errors.Join(last.Sync(), f.move()); err != nil {
		f.config.Log.Error("the next file of the audit log could not be begun", "file", f.config.File, "error", err)
		return
	}
	if err := f.begin(); err != nil {
		f.config.Log.Error("the next file of the audit log could not be begun", "file", f.config.File, "error", err)
		return
	}
	_ = last.Close() // it was synced
}

// move gives the file, and those before it, their next names.
func (f *files) move() error {
	if f.config.Files == 0 {
		return os.Remove(f.config.File)
	}
	for number := f.config.Files; number > 0; number-- {
		from := f.config.File
		if number > 1 {
			from = f.name(number - 1)
		}
		if err := os.Rename(from, f.name(number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (f *files) close() error { return errors.Join(f.file.Sync(), f.file.Close()) }
