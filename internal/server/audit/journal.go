package audit

import "sync"

// maxQueue bounds the records that wait to be written to a journal. While the queue of changes is
// full, the state machine waits: an audit log with holes is worth little. If a write fails, its
// lines are lost instead: a full disk must not stop the store.
const maxQueue = 4096

// maxBatch is the size in bytes at which a batch of records is written at the latest, or MaxBytes/4
// if that is less. The last record of a batch may exceed it.
const maxBatch = 256 << 10

// journal is one file with the earlier ones beside it, and the goroutine that writes it.
type journal struct {
	config Config
	files  *files
	last   place // an earlier run has written the records up to this place
	queue  chan Record
	done   sync.WaitGroup
	closed sync.Once
}

// openJournal opens config.File and starts the goroutine that appends to it.
func openJournal(config Config) (*journal, error) {
	opened, last, err := openFiles(config)
	if err != nil {
		return nil, err
	}
	if end := endOf(config.LastTerm, config.LastIndex); end.before(last) {
		config.Log.Warn("the audit log goes beyond the log of this member: older data was put back. Entries after the end of its log are recorded",
			"file", config.File, "term", end.term, "index", end.index)
		last = end
	}
	j := &journal{config: config, files: opened, last: last, queue: make(chan Record, maxQueue)}
	j.done.Go(j.write)
	return j, nil
}

// close writes the queued records, and closes the file.
func (j *journal) close() error {
	j.closed.Do(func() { close(j.queue) })
	j.done.Wait()
	return j.files.close()
}

// write writes records until the queue is closed.
func (j *journal) write() {
	var batch []byte
	most := min(maxBatch, int(j.config.MaxBytes/4))
	lines, failing := 0, false
	for record := range j.queue {
		batch = append(batch, encode(&record)...)
		lines++
		if len(j.queue) > 0 && len(batch) < most {
			continue
		}
		err := j.files.append(batch)
		if err != nil {
			j.config.Lost(lines)
		}
		if (err != nil) != failing {
			if failing = err != nil; failing {
				j.config.Log.Error(
					"writing the audit log failed: lines are lost until it works again", "file",
					j.config.File, "error", err)
			} else {
				j.config.Log.Info("writing the audit log works again", "file", j.config.File)
			}
		}
		batch, lines = batch[:0], 0
	}
}
