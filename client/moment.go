package client

import "time"

// moment is a point in time. The time since then includes the time in which the machine was suspended, which Go's monotonic clock leaves out on Linux.
type moment struct {
	at   time.Time
	boot time.Duration // what sinceBoot returned
}

func now() moment { return moment{time.Now(), sinceBoot()} }

// elapsed returns the time since the moment.
func (m moment) elapsed() time.Duration { return max(time.Since(m.at), sinceBoot()-m.boot) }
