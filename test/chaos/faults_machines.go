package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast/test/chaos/record"
)

// jump sets the clocks of a minority wrong, and right again at the end. An offset of more than
// harmless is set on a single node. The product promises that one wrong clock has no effect. It
// does not promise that for two wrong clocks while only three nodes are reachable.
func (in *injection) jump(ctx, _ context.Context) (bool, error) {
	const most = 2 * time.Minute
	offset, who := time.Duration(in.random.Int64N(int64(2*most)))-most, "a minority"
	if offset.Abs() > harmless {
		who = "a node"
	}
	return in.setAhead(ctx, in.choose(who), offset)
}

// harmless bounds the offset that several clocks get at the same time. It is below hlc.MaxSkew (60
// s), beyond which requests are refused.
const harmless = 50 * time.Second

// jumpTogether sets all clocks wrong by one offset of up to harmless, and right again at the end.
// Expiry must not depend on it.
func (in *injection) jumpTogether(ctx, _ context.Context) (bool, error) {
	offset := time.Duration(in.random.Int64N(int64(2*harmless))) - harmless
	return in.setAhead(ctx, in.choose("all"), offset)
}

func (in *injection) setAhead(ctx context.Context, chosen []*machine, offset time.Duration) (bool,
	error,
) {
	in.note = offset.Round(time.Millisecond).String()
	return in.setClocks(ctx, chosen, func(time.Duration) time.Duration { return offset })
}

// skew lets the clocks of a minority run too fast, or too slowly.
func (in *injection) skew(ctx, _ context.Context) (bool, error) {
	chosen := in.choose("a minority")
	rate := in.random.Float64()*2 - 1 // error of the clock in seconds, for each second
	in.note = fmt.Sprintf("%+.2f s a second", rate)
	return in.setClocks(ctx, chosen,
		func(passed time.Duration) time.Duration { return time.Duration(float64(passed) * rate) })
}

func (in *injection) setClocks(ctx context.Context, chosen []*machine,
	offset func(passed time.Duration) time.Duration,
) (bool, error) {
	in.clocks.Lock() // one fault of the clocks at a time
	defer in.clocks.Unlock()
	began := in.now()
	in.began = began
	defer func() {
		if err := all(chosen, func(m *machine) error { return m.setClock(0) }); err != nil {
			in.say("%v", err)
		}
	}()
	for in.now()-began < in.lasts {
		if err := all(chosen, func(
			m *machine,
		) error {
			return m.setClock(offset(in.now() - began))
		}); err != nil {
			return false, err
		}
		if !sleep(ctx, 100*time.Millisecond) {
			break
		}
	}
	return true, nil
}

// diskFault returns the function that injects a fault of one node's disk. change sets the fault, or
// removes it.
func (in *injection) diskFault(change func(t *record.Trouble, on bool)) func(ctx,
	always context.Context) (bool, error) {
	return func(ctx, _ context.Context) (bool, error) {
		chosen, done, err := in.occupy(in.choose("a node"), bodyLock)
		if err != nil {
			return false, err
		}
		defer done()
		m := chosen[0]
		excuse := m.excuse
		if in.kind == "slow disk" {
			excuse = func() {}
		}
		excuse()
		defer excuse()
		err = m.setTrouble(func(t *record.Trouble) { change(t, true) })
		for until := in.now() + in.lasts; in.now() < until && sleep(ctx, time.Second); {
			excuse()
		}
		if heal := m.setTrouble(func(t *record.Trouble) { change(t, false) }); err == nil {
			err = heal
		}
		return err == nil, err
	}
}

func (in *injection) slowDisk(ctx, always context.Context) (bool, error) {
	delay := time.Duration(10+in.random.IntN(300)) * time.Millisecond
	in.note = delay.String()
	return in.diskFault(func(t *record.Trouble, on bool) {
		t.SyncDelay = 0
		if on {
			t.SyncDelay = record.Duration(delay)
		}
	})(ctx, always)
}

// withMachineStopped stops a machine, calls do, and starts the machine. Before and after that it
// waits until the state hashes of all replicas can be compared. Otherwise two disks could be
// emptied one after the other, and the second could have the last copy of an entry.
func (in *injection) withMachineStopped(ctx context.Context, m *machine, do func() error) (bool,
	error,
) {
	free, ok := in.takeDisk(ctx, m)
	if !ok {
		return false, errBusy
	}
	defer free()
	return in.withMachineStoppedLocked(ctx, m, do)
}

// takeDisk locks diskLock and the machine's body, until free is called. It tries again for as long
// as the fault is to last, and then returns false.
func (in *injection) takeDisk(ctx context.Context, m *machine) (free func(), ok bool) {
	for given := in.now() + in.lasts; ; {
		if in.diskLock.TryLock() {
			if _, done, err := in.occupy([]*machine{m}, bodyLock); err == nil {
				if in.began == 0 {
					in.began = in.now()
				}
				return func() { done(); in.diskLock.Unlock() }, true
			}
			in.diskLock.Unlock()
		}
		if in.now() > given || !sleep(ctx, 200*time.Millisecond) {
			return nil, false
		}
	}
}

// withMachineStoppedLocked does what withMachineStopped does, for a caller that has called
// takeDisk. It returns false if it did not call do, or if a step failed.
func (in *injection) withMachineStoppedLocked(ctx context.Context, m *machine,
	do func() error,
) (bool, error) {
	const patience = time.Minute
	if _, missing := in.awaitVerification(ctx, patience); missing != "" {
		in.note = "not done: " + missing
		return false, nil
	}
	always := context.WithoutCancel(ctx)
	m.hold()
	err := m.do(always, "stop")
	if err == nil {
		err = do()
	}
	if started := in.release(always, m); err == nil {
		err = started
	}
	in.healed = in.now()
	if _, missing := in.awaitVerification(ctx, patience); missing != "" && ctx.Err() == nil {
		in.fail("after %s on %s: %s", in.kind, m.ID, missing)
	}
	return err == nil, err
}

// flip flips a bit in the newest file whose name matches a pattern, but not in the zeros at its
// end, which are unused. If the node has not noticed, the harness empties its disk afterwards.
// Otherwise another disk could be lost while this one is damaged.
func (in *injection) flip(ctx context.Context, pattern string) (bool, error) {
	m := in.choose("a node")[0]
	free, ok := in.takeDisk(ctx, m)
	if !ok {
		return false, errBusy
	}
	defer free()
	flipped := false
	_, err := in.withMachineStoppedLocked(ctx, m, func() error {
		path, err := newest(filepath.Join(m.folder, "data"), pattern)
		if err != nil || path == "" {
			in.note = "there is no " + pattern
			return err
		}
		data, err := os.ReadFile(path)
		used := bytes.TrimRight(data, "\x00")
		if err != nil || len(used) == 0 {
			in.note = filepath.Base(path) + " is empty"
			return err
		}
		at := in.random.IntN(len(used))
		in.note = fmt.Sprintf("%s: byte %d of %d", filepath.Base(path), at, len(used))
		flipped = true
		m.mark(true, false)
		return overwrite(path, int64(at), used[at]^1<<in.random.IntN(8))
	})
	if _, useless := m.reasons(); err == nil && useless {
		in.note += ", not noticed"
		_, err = in.withMachineStoppedLocked(ctx, m, m.wipe)
	}
	return flipped, err
}

// overwrite changes a byte of a file.
func overwrite(path string, at int64, b byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte{b}, at)
	return errors.Join(err, file.Close())
}

// newest returns the path of the file that was changed last, among those in a folder and its
// subfolders whose names match a pattern. "" is none.
func newest(folder, pattern string) (path string, err error) {
	var latest time.Time
	err = filepath.WalkDir(folder, func(at string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if matches, err := filepath.Match(pattern, entry.Name()); err != nil || !matches {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().After(latest) {
			path, latest = at, info.ModTime()
		}
		return err
	})
	return path, err
}

// replaceMember empties a machine's disk: its node joins anew, as another member.
func (in *injection) replaceMember(ctx, _ context.Context) (bool, error) {
	m := in.choose("a node")[0]
	return in.withMachineStopped(ctx, m, m.wipe)
}

// removeMember stops a machine, has the leader remove its member, and starts it again with an empty
// disk: its node joins as another member.
func (in *injection) removeMember(ctx, _ context.Context) (bool, error) {
	m := in.choose("a node")[0]
	return in.withMachineStopped(ctx, m, func() error {
		for given := in.now() + 30*time.Second; ; {
			var err error
			if leader := in.leader(); leader != nil && leader != m {
				// before the call: the member may be removed although the answer is lost
				m.mark(false, true)
				_, err = leader.operate(ctx, "raft", "remove-peer", "--yes", m.ID)
			} else {
				err = errNothing
			}
			if err == nil || in.now() > given { // whether it was removed or not: it joins anew
				return errors.Join(err, m.wipe())
			}
			if !sleep(ctx, 500*time.Millisecond) {
				return errors.Join(err, m.wipe())
			}
		}
	})
}

// rollingRestart restarts one machine after the other, each when the one before it is back.
func (in *injection) rollingRestart(ctx, _ context.Context) (bool, error) {
	var restarted []string
	for _, m := range in.choose("all") {
		done, err := in.withMachineStopped(ctx, m, func() error { return nil })
		if done {
			restarted = append(restarted, m.ID)
		}
		in.on = restarted // stopped has set it to the one machine
		if !done || err != nil {
			return false, err
		}
	}
	return true, nil
}

// storm takes a snapshot on every machine again and again.
func (in *injection) storm(ctx, _ context.Context) (bool, error) {
	taken := 0
	for until := in.now() + in.lasts; in.now() < until; {
		for _, m := range in.machines {
			if _, err := m.operate(ctx, "raft", "snapshot", "take"); err == nil {
				taken++
			}
		}
		if !sleep(ctx, 100*time.Millisecond) {
			break
		}
	}
	in.note = fmt.Sprintf("%d taken", taken)
	return taken > 0, nil
}

// transfer hands the leadership over again and again.
func (in *injection) transfer(ctx, _ context.Context) (bool, error) {
	done := 0
	for until := in.now() + in.lasts; in.now() < until; {
		if leader := in.leader(); leader != nil {
			if _, err := leader.operate(ctx, "raft", "transfer-leader"); err == nil {
				done++
			}
		}
		if !sleep(ctx, time.Second) {
			break
		}
	}
	in.note = fmt.Sprintf("%d times", done)
	return done > 0, nil
}

// depose hands the leadership over again and again, and keeps the old leader from hearing of it.
func (in *injection) depose(ctx, always context.Context) (bool, error) {
	deposed := 0
	for until := in.now() + in.lasts; in.now() < until && ctx.Err() == nil; {
		leader := in.leader()
		if leader == nil {
			sleep(ctx, 200*time.Millisecond)
			continue
		}
		if !slices.Contains(in.on, leader.ID) {
			in.on = append(in.on, leader.ID)
		}
		var links [][2]*machine
		for _, m := range in.machines {
			if m != leader {
				// the old leader can send, but receives nothing
				links = append(links, [2]*machine{m, leader})
			}
		}
		handed := make(chan error, 1)
		go func() {
			// the transfer takes a moment to begin, and the command does not return before the
			// links are restored
			_, err := leader.operate(always, "raft", "transfer-leader")
			handed <- err
		}()
		sleep(ctx, time.Duration(30+in.random.IntN(200))*time.Millisecond)
		noticed, err := (&injection{
			world: in.world, fault: &fault{lasts: 2500 * time.Millisecond},
			random: in.random,
		}).cutLinks(ctx, always, links)
		<-handed // its error does not matter: noticed is the effect
		if err != nil {
			return false, err
		}
		if noticed {
			deposed++
		}
		sleep(ctx, 500*time.Millisecond)
	}
	in.note = fmt.Sprintf("%d times", deposed)
	return deposed > 0, nil
}

// pauseClients freezes the container of the clients, some of which hold locks.
func (in *injection) pauseClients(ctx, always context.Context) (bool, error) {
	// while a fault ends the broker, it asks the clients for their count of disconnects
	in.brokerLock.Lock()
	defer in.brokerLock.Unlock()
	in.on, in.began = []string{"the clients"}, in.now()
	err := in.load.do(always, "pause")
	sleep(ctx, in.lasts)
	return err == nil, errors.Join(err, in.load.do(always, "unpause"))
}
