package audit

import (
	"bufio"
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
	file   *os.File // nil after the next one could not be begun
	writer *bufio.Writer
	size   int64
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
	last, err := f.mend()
	if err == nil && last.Index == 0 { // nothing in it yet: the one before it has the last line
		last, err = lastOf(f.name(1))
	}
	if err != nil {
		return nil, place{}, errors.Join(err, f.file.Close())
	}
	if last.Member != config.Member {
		return f, place{}, nil
	}
	return f, place{last.Index, last.Position}, nil
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
	f.file, f.size, f.writer = file, info.Size(), bufio.NewWriter(file)
	return nil
}

// mend returns the last record, and takes away what is behind it.
func (f *files) mend() (Record, error) {
	last, end, err := scan(f.file)
	if err == nil && end < f.size {
		err = f.file.Truncate(end)
		f.size = end
	}
	return last, err
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

// tailSize is how much of the end of a file is looked at: longer than any line, whose key is at most 64 KiB as a rule.
const tailSize = 1 << 20

// scan returns the record of the last whole line, and where that ends.
func scan(file *os.File) (last Record, end int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return last, 0, err
	}
	from := max(0, info.Size()-tailSize)
	tail := make([]byte, info.Size()-from)
	if _, err := io.ReadFull(io.NewSectionReader(file, from, int64(len(tail))), tail); err != nil {
		return last, 0, err
	}
	whole := tail[:bytes.LastIndexByte(tail, '\n')+1]
	lines := bytes.Split(bytes.TrimSuffix(whole, []byte("\n")), []byte("\n"))
	if len(whole) > 0 {
		if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil {
			return last, 0, fmt.Errorf("the last line of %s: %w", file.Name(), err)
		}
	}
	return last, from + int64(len(whole)), nil
}

// append adds a record, to the next file when this one is large enough.
func (f *files) append(record *Record) error {
	line, err := encode(record)
	if err != nil {
		return err
	}
	if f.file == nil || f.size > 0 && f.size+int64(len(line)) > f.config.MaxBytes {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	written, err := f.writer.Write(line)
	f.size += int64(written)
	return err
}

func (f *files) flush() error {
	if f.file == nil {
		return nil // what was lost was told
	}
	err := f.writer.Flush()
	if err != nil { // a writer that has failed fails for ever
		f.writer.Reset(f.file)
	}
	return err
}

// rotate begins the next file. The oldest of those that are kept goes.
func (f *files) rotate() error {
	if f.file != nil {
		err := errors.Join(f.flush(), f.file.Close())
		f.file = nil
		if err != nil {
			return err
		}
		if f.config.Files == 0 {
			if err := os.Remove(f.config.File); err != nil {
				return err
			}
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
	}
	return f.begin()
}

func (f *files) close() error {
	if f.file == nil {
		return nil
	}
	return errors.Join(f.flush(), f.file.Sync(), f.file.Close())
}
