package replica

import (
	"io"
	"time"
)

// A snapshot is written with pauses, which leave the processors and the disk to requests. After at
// least workTime of work, the writer pauses for pauseFactor times as long as it worked, but for
// maxPause at most, so that a snapshot also ends on a slow disk.
const (
	workTime    = time.Millisecond
	pauseFactor = 4
	maxPause    = 50 * time.Millisecond
)

// pacedWriter pauses between writes.
type pacedWriter struct {
	w     io.Writer
	now   func() time.Duration // a clock that never goes back
	pause func(time.Duration)
	began time.Duration // when the current work began: at the start, or after the last pause
}

func (p *pacedWriter) Write(data []byte) (int, error) {
	n, err := p.w.Write(data)
	if err != nil {
		return n, err
	}
	if worked := p.now() - p.began; worked >= workTime {
		p.pause(min(pauseFactor*worked, maxPause))
		p.began = p.now()
	}
	return n, nil
}
