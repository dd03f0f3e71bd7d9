package replica

import (
	"io"
	"time"
)

// The writing of a snapshot rests restShare times as long as it took since it last rested: requests need the processors and the disk more. It works for
// workTime before it rests, and rests for maxRest at most, so that a slow disk does not make it endless.
const (
	workTime  = time.Millisecond
	restShare = 4
	maxRest   = 50 * time.Millisecond
)

// pacedWriter rests between writes.
type pacedWriter struct {
	w     io.Writer
	now   func() time.Duration // a clock that never goes back
	rest  func(time.Duration)
	began time.Duration // when it began to work, after its last rest
}

func (p *pacedWriter) Write(data []byte) (int, error) {
	n, err := p.w.Write(data)
	if err != nil {
		return n, err
	}
	if worked := p.now() - p.began; worked >= workTime {
		p.rest(min(restShare*worked, maxRest))
		p.began = p.now()
	}
	return n, nil
}
