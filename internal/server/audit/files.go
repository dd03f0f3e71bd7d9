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

// files is the file that is written to, and the earlier ones beside it. It belongs to one
// goroutine.
type files struct {
	config Config
	file   *os.File
	size   int64 // bytes of the complete lines
	torn   bool  // behind these bytes there may be a part of a line that could not be cut off
}

// openFiles opens the file, and returns the place of its last record, or the zero place if another
// member wrote that. It cuts off an unfinished last line.
func openFiles(config Config) (*files, place, error) {
	f := &files{config: config}
	if err := os.MkdirAll(filepath.Dir(config.File), 0o700); err != nil {
		return nil, place{}, err
	}
	if err := f.finishRotation(); err != nil { // a rotation was interrupted
		return nil, place{}, err
	}
	file, err := openFile(config.File)
	if err != nil {
		return nil, place{}, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, place{}, errors.Join(err, file.Close())
	}
	f.file, f.size = file, info.Size()
	last, end, err := scan(f.file)
	if err == nil && end < f.size {
		f.size = end
		err = f.file.Truncate(end)
	}
	if err == nil && last.Index == 0 { // the file has no record yet: the last one is in FILE.1
		last, err = lastOf(f.name(1))
	}
	if err != nil {
		return nil, place{}, errors.Join(err, f.file.Close())
	}
	if last.Member != config.Member {
		return f, place{}, nil
	}
	return f, last.place(), nil
}

func (f *files) name(number int) string { return fmt.Sprintf("%s.%d", f.config.File, number) }

func openFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
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

// scan returns the last line that is a valid record, and the offset at which the last whole line
// ends. It looks at the end of the file first, and further back until it finds a record.
func scan(file *os.File) (last Record, end int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return last, 0, err
	}
	for look := int64(1 << 20); ; look *= 4 {
		from := max(0, info.Size()-look)
		tail := make([]byte, info.Size()-from)
		if _, err := io.ReadFull(io.NewSectionReader(file, from, int64(len(tail))),
			tail); err != nil {
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

// append adds whole lines. If they would make this file larger than MaxBytes, it rotates first.
// Lines that cannot be written whole are cut off again: at once, or before the next lines.
func (f *files) append(lines []byte) error {
	if err := f.followPath(); err != nil {
		return err
	}
	if err := f.cutTorn(); err != nil {
		return err
	}
	if f.size > 0 && f.size+int64(len(lines)) > f.config.MaxBytes {
		f.rotate()
	}
	written, err := f.file.Write(lines)
	if err != nil {
		f.torn = written > 0
		return errors.Join(err, f.cutTorn())
	}
	f.size += int64(written)
	return nil
}

// followPath opens the file anew if its name does not lead to the open file any more: it was
// removed, renamed or replaced. Lines that went on into a file without a name would be lost, and
// nobody would know.
func (f *files) followPath() error {
	named, err := os.Stat(f.config.File)
	if err == nil {
		open, err := f.file.Stat()
		if err != nil {
			return err
		}
		if os.SameFile(named, open) {
			return nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.config.File), 0o700); err != nil {
		return err
	}
	file, err := openFile(f.config.File)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.config.Log.Warn("the file of the audit log was removed or replaced: what follows goes to the file that has its name now. To keep earlier lines, copy the files, and leave them in place",
		"file", f.config.File)
	_ = f.file.Close() // its lines are written already, to wherever they are
	f.file, f.size, f.torn = file, info.Size(), false
	return nil
}

// cutTorn cuts off the part of a line that a failed append left at the end of the file.
func (f *files) cutTorn() error {
	if !f.torn {
		return nil
	}
	if err := f.file.Truncate(f.size); err != nil {
		return err
	}
	f.torn = false
	return nil
}

// rotate begins the next file. If FILE.1 to FILE.n all exist, FILE.n is overwritten. Files with
// greater numbers, from when Config.Files was larger, stay. If rotate fails, lines still go to the
// current file: a file that is too large is better than lost lines.
func (f *files) rotate() {
	if err := f.startNextFile(); err != nil {
		f.config.Log.Error("the next file of the audit log could not be begun", "file",
			f.config.File, "error", err)
	}
}

// startNextFile puts the next file in the place of the current one, and renames the current one to
// FILE.last and then to FILE.1. With Files 0 it overwrites the current one. Only finishRotation
// overwrites a kept file. A crash or an error can leave FILE.last. The next attempt, or openFiles,
// then renames it to FILE.1.
func (f *files) startNextFile() error {
	if err := f.finishRotation(); err != nil {
		// a FILE.last that an earlier rotation left must not be overwritten
		return err
	}
	name, last := f.config.File+".next", f.config.File+".last"
	next, err := openFile(name)
	if err != nil {
		return err
	}
	err = f.file.Sync()
	if err == nil && f.config.Files > 0 {
		if err = os.Rename(f.config.File, last); errors.Is(err, fs.ErrNotExist) {
			err = nil // an operator has moved it: there is nothing to keep
		}
	}
	if err == nil {
		if err = os.Rename(name, f.config.File); err != nil && f.config.Files > 0 {
			err = errors.Join(err, os.Rename(last, f.config.File))
		}
	}
	if err != nil {
		return errors.Join(err, next.Close(), os.Remove(name))
	}
	_ = f.file.Close() // it was synced
	f.file, f.size = next, 0
	return f.finishRotation()
}

// finishRotation renames FILE.last to FILE.1, if there is a FILE.last. It first moves FILE.1 and
// the files after it up by one number, as far as the first free number; if none is free, FILE.n is
// overwritten. With Files 0 it removes FILE.last instead. It may be called again after an
// interruption: it then finds the number that the interrupted moves left free.
func (f *files) finishRotation() error {
	if _, err := os.Lstat(f.config.File + ".last"); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	last := f.config.File + ".last"
	if f.config.Files == 0 {
		return os.Remove(last)
	}
	free := 1
	for free < f.config.Files && exists(f.name(free)) {
		free++
	}
	for number := free; number > 1; number-- {
		if err := os.Rename(f.name(number-1), f.name(number)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			// an operator may have moved the file
			return err
		}
	}
	return os.Rename(last, f.name(1))
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

func (f *files) close() error { return errors.Join(f.file.Sync(), f.file.Close()) }
