package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"holdfast/test/chaos/record"
)

// injection is a fault that is being injected.
type injection struct {
	*world
	*fault
	random *rand.Rand
	on     []string // names of what is disturbed, for log and report
	note   string
	began  time.Duration // when it began after it waited for a lock; 0 if it did not wait
	// when the disturbance ended, if the fault goes on to wait for the cluster; else 0
	healed time.Duration
}

// errBusy says that the fault was not injected: other faults hold the locks that it needs.
var errBusy = errors.New("other faults are there")

// held by faults of the machine, its node or its disk
func bodyLock(m *machine) *sync.Mutex { return &m.body }

// held by faults that set the loss or the delay of its network
func netLock(m *machine) *sync.Mutex { return &m.net }

// occupy locks one mutex, which lockOf returns, of each wanted machine where it is free. It returns
// these machines, at least one, or an error. done unlocks the mutexes.
func (in *injection) occupy(wanted []*machine, lockOf func(*machine) *sync.Mutex) (got []*machine,
	done func(), err error,
) {
	if len(wanted) == 0 {
		return nil, nil, errNothing
	}
	in.on = nil
	for _, m := range wanted {
		if lockOf(m).TryLock() {
			got = append(got, m)
			in.on = append(in.on, m.ID)
		}
	}
	if len(got) == 0 {
		return nil, nil, errBusy
	}
	return got, func() {
		for _, m := range got {
			lockOf(m).Unlock()
		}
	}, nil
}

// errNothing says that there was nothing to disturb: no leader, for instance.
var errNothing = errors.New("there was nothing to disturb")

// disturb injects all faults of a plan, whose times count from now on, and waits until the last one
// is healed.
func (w *world) disturb(ctx context.Context, plan []fault) {
	start := w.now()
	var working sync.WaitGroup
	for i := range plan {
		f := &plan[i]
		working.Go(func() {
			if sleep(ctx, start+f.at-w.now()) {
				w.inject(ctx, f)
			}
		})
	}
	working.Wait()
}

// sleep waits for a time. It returns false if ctx has ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (w *world) inject(ctx context.Context, f *fault) {
	in := &injection{world: w, fault: f, random: f.random()}
	w.say("begin: %s", f.kind)
	from := w.now()
	// The second context does not end: the fault is healed also when the run is interrupted.
	effect, err := in.run(ctx, context.WithoutCancel(ctx))
	to := w.now()
	from, healed := max(from, in.began), cmp.Or(in.healed, to)
	if err != nil {
		in.note = err.Error()
	}
	w.say("end:   %s on %s: effect %v %s", f.kind, strings.Join(in.on, ", "), effect, in.note)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run.Faults = append(w.run.Faults, record.Fault{
		Kind: f.kind, On: strings.Join(in.on, ", "), From: record.Duration(from),
		To: record.Duration(to), Effect: effect, Note: in.note,
	})
	w.run.Healed = max(w.run.Healed, record.Duration(healed))
}

// run injects the fault, and heals it. The end of ctx cuts the fault short. always has no end:
// steps that inject or heal use it.
func (in *injection) run(ctx, always context.Context) (effect bool, err error) {
	what, where, _ := strings.Cut(in.kind, " of ")
	switch {
	case what == "power failure" || what == "kill -9":
		return in.kill(ctx, always, what == "power failure", where)
	case what == "pause":
		return in.pause(ctx, always, in.choose(where))
	case strings.HasPrefix(in.kind, "partition: "):
		return in.partition(ctx, always, strings.TrimPrefix(in.kind, "partition: "))
	}
	inject, known := map[string]func(ctx, always context.Context) (bool, error){
		"leader cut off from the broker": func(ctx, always context.Context) (bool, error) {
			return in.cutOff(ctx, always, in.choose("the leader"))
		},
		"node cut off from the broker": func(ctx, always context.Context) (bool,
			error,
		) {
			return in.cutOff(ctx, always, in.choose("a node"))
		},
		"loss of packets": in.lose, "slow links": in.slow,
		"late broker": func(ctx, _ context.Context) (bool,
			error,
		) {
			return in.late(ctx, in.choose("a minority"))
		},
		"leader late at the broker": func(ctx, _ context.Context) (bool,
			error,
		) {
			return in.late(ctx, in.choose("the leader"))
		},
		"broker restart": in.restartBroker, "broker pause": in.pauseBroker,
		"broker kill -9 without its persistence": func(ctx, always context.Context) (bool,
			error,
		) {
			return in.killBroker(ctx, always, true)
		},
		oldPersistence: func(ctx, always context.Context) (bool,
			error,
		) {
			return in.killBroker(ctx, always, false)
		},
		"clock jump": in.jump, "clock skew": in.skew,
		"clocks jump together": in.jumpTogether,
		"disk full": in.diskFault(func(t *record.Trouble,
			on bool,
		) {
			t.DiskFull = on
		}),
		"fsync fails": in.diskFault(func(t *record.Trouble,
			on bool,
		) {
			t.FailSync = on
		}),
		"disk hangs": in.diskFault(func(t *record.Trouble,
			on bool,
		) {
			t.DiskHangs = on
		}),
		"slow disk": in.slowDisk,
		"flipped bit in the log": func(ctx, _ context.Context) (bool,
			error,
		) {
			return in.flip(ctx, "*.wal")
		},
		"flipped bit in a snapshot": func(ctx, _ context.Context) (bool,
			error,
		) {
			return in.flip(ctx, "state.bin")
		},
		"member removed and added": in.removeMember, "member replaced": in.replaceMember,
		"rolling restart": in.rollingRestart,
		"snapshot storm":  in.storm, "leadership transfer": in.transfer,
		"leader deposed unawares": in.depose, "clients paused": in.pauseClients,
		"flood": func(ctx, _ context.Context) (bool,
			error,
		) {
			return in.bad(ctx, "flood")
		},
		"deaf client": func(ctx, _ context.Context) (bool,
			error,
		) {
			return in.bad(ctx, "deaf")
		},
		"ten thousand watchers": func(ctx, _ context.Context) (bool,
			error,
		) {
			return in.bad(ctx, "watchers")
		},
	}[in.kind]
	if !known {
		return false, fmt.Errorf("there is no fault %q", in.kind)
	}
	return inject(ctx, always)
}

// choose returns the machines that where names: the leader, a node, a minority or a majority. Any
// other text means all. It returns none if there is no leader. Except for the leader, they are
// drawn.
func (in *injection) choose(where string) (chosen []*machine) {
	shuffled := append([]*machine(nil), in.machines...)
	in.random.Shuffle(len(shuffled),
		func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	switch where {
	case "the leader":
		if leader := in.leader(); leader != nil {
			chosen = []*machine{leader}
		}
	case "a node":
		chosen = shuffled[:1]
	case "a majority":
		chosen = shuffled[:len(shuffled)/2+1]
	case "a minority":
		chosen = shuffled[:1+in.random.IntN((len(shuffled)-1)/2)]
	default:
		chosen = shuffled
	}
	for _, m := range chosen {
		in.on = append(in.on, m.ID)
	}
	return chosen
}

// all calls do for each machine, concurrently, and joins the errors.
func all(machines []*machine, do func(*machine) error) error {
	var working sync.WaitGroup
	errs := make([]error, len(machines))
	for i, m := range machines {
		working.Go(func() { errs[i] = do(m) })
	}
	working.Wait()
	return errors.Join(errs...)
}

// kill ends machines as a power failure does, with the loss of what was not synced, or only their
// node processes.
func (in *injection) kill(ctx, always context.Context, power bool, where string) (bool, error) {
	chosen, done, err := in.occupy(in.choose(where), bodyLock)
	if err != nil {
		return false, err
	}
	defer done()
	for _, m := range chosen {
		m.hold()
	}
	defer func() {
		if err := all(chosen, func(m *machine) error { return in.release(always, m) }); err != nil {
			in.say("%v", err)
		}
	}()
	err = all(chosen, func(m *machine) error {
		if power {
			return m.do(always, "kill", "-s", "KILL")
		}
		return m.killNode(always)
	})
	sleep(ctx, in.lasts)
	dead := true
	for _, m := range chosen {
		for deadline := time.Now().Add(10 * time.Second); m.running(always) &&
			time.Now().Before(deadline); {
			// a machine may have much to write back
			sleep(always, 100*time.Millisecond)
		}
		if m.running(always) {
			err = errors.Join(err, m.do(always, "kill", "-s", "KILL"))
		}
		dead = dead && !m.running(always)
	}
	return dead, err
}

// killNode kills the node process. The first process of the machine then writes back what is not
// synced, and exits.
func (m *machine) killNode(ctx context.Context) error {
	pid, err := m.pid(ctx)
	if err != nil || pid == "0" { // it does not run
		return err
	}
	_, err = runProgram(ctx, "", "pkill", "-KILL", "-P", pid, "-x", "holdfast")
	return err
}

func (in *injection) pause(ctx, always context.Context, wanted []*machine) (bool, error) {
	chosen, done, err := in.occupy(wanted, bodyLock)
	if err != nil {
		return false, err
	}
	defer done()
	in.note = fmt.Sprintf("%v", in.lasts.Round(time.Millisecond))
	err = all(chosen, func(m *machine) error { return m.do(always, "pause") })
	sleep(ctx, in.lasts)
	return err == nil, errors.Join(err,
		all(chosen, func(m *machine) error { return m.do(always, "unpause") }))
}

// cutLinks drops for a time the packets from the first to the second machine of each link. It
// reports whether a node noticed: another one leads, or a leader has missed answers.
func (in *injection) cutLinks(ctx, always context.Context, links [][2]*machine) (bool, error) {
	if len(links) == 0 {
		return false, errNothing
	}
	before := in.leader()
	for _, l := range links {
		in.cut(l[0], l[1], 1)
	}
	defer func() {
		for _, l := range links {
			in.cut(l[0], l[1], -1)
		}
		in.heal(always)
	}()
	if err := in.applyAll(always); err != nil {
		return false, err
	}
	noticed := false
	for until := in.now() + in.lasts; in.now() < until && sleep(ctx, 200*time.Millisecond); {
		after := in.leader()
		noticed = noticed || before != nil && after != nil && before != after
		for _, m := range in.machines {
			m.mu.Lock()
			noticed = noticed || m.leads && m.answers < len(in.machines)
			m.mu.Unlock()
		}
	}
	return noticed, nil
}

// partition cuts links between members.
func (in *injection) partition(ctx, always context.Context, shape string) (bool, error) {
	var links [][2]*machine
	both := func(a, b *machine) { links = append(links, [2]*machine{a, b}, [2]*machine{b, a}) }
	count := len(in.machines)
	switch shape {
	case "leader alone":
		leader := in.choose("the leader")
		if len(leader) == 0 {
			return false, errNothing
		}
		for _, m := range in.machines {
			if m != leader[0] {
				both(leader[0], m)
			}
		}
	case "halves", "bridge": // a bridge is a node that both halves hear
		order := in.choose("all")
		first := 0
		if shape == "bridge" {
			first = 1
		}
		half := first + (count-first)/2
		for _, a := range order[first:half] {
			for _, b := range order[half:] {
				both(a, b)
			}
		}
	case "one-way":
		order := in.choose("all")
		for _, m := range order[1:] {
			links = append(links, [2]*machine{order[0], m})
		}
		if in.random.IntN(2) == 0 {
			for i := range links {
				links[i][0], links[i][1] = links[i][1], links[i][0]
			}
		}
	case "ring":
		// each node reaches its two neighbours only; of three nodes all are neighbours, so one link
		// is cut
		order := in.choose("all")
		for i := range order {
			for j := i + 2; j < count; j++ {
				if i > 0 || j < count-1 {
					both(order[i], order[j])
				}
			}
		}
		if count == 3 {
			both(order[0], order[2])
		}
	default:
		return false, fmt.Errorf("there is no partition %q", shape)
	}
	return in.cutLinks(ctx, always, links)
}

// cutOff cuts machines off from the broker.
func (in *injection) cutOff(ctx, always context.Context, chosen []*machine) (bool, error) {
	if len(chosen) == 0 {
		return false, errNothing
	}
	return in.withFirewallsChanged(ctx, always, func(change int) {
		for _, m := range chosen {
			in.cutBroker(m, change)
		}
	})
}

// withFirewallsChanged changes firewalls for a time: change(1) applies the change and change(-1)
// undoes it. Faults overlap. So change must add to a counter, as firewall.set does, or the caller
// must hold the machines' netLock.
func (in *injection) withFirewallsChanged(ctx, always context.Context, change func(by int)) (bool,
	error,
) {
	change(1)
	err := in.applyAll(always)
	if err == nil {
		sleep(ctx, in.lasts)
	}
	change(-1)
	in.heal(always)
	return err == nil, err
}

func (in *injection) lose(ctx, always context.Context) (bool, error) {
	chosen, done, err := in.occupy(in.choose("a minority"), netLock)
	if err != nil {
		return false, err
	}
	defer done()
	loss := 5 + in.random.IntN(30)
	in.note = fmt.Sprintf("%d %%", loss)
	return in.withFirewallsChanged(ctx, always, func(by int) {
		for _, m := range chosen {
			m.firewall.mu.Lock()
			m.firewall.loss = max(0, by) * loss
			m.firewall.mu.Unlock()
		}
	})
}

func (in *injection) slow(ctx, always context.Context) (bool, error) {
	chosen, done, err := in.occupy(in.choose("a minority"), netLock)
	if err != nil {
		return false, err
	}
	defer done()
	in.note = "netem where the kernel has it, else 400 kbit/s"
	return in.withFirewallsChanged(ctx, always, func(by int) {
		for _, m := range chosen {
			m.firewall.mu.Lock()
			m.firewall.slowed = by > 0
			m.firewall.mu.Unlock()
		}
	})
}

// late delays the traffic between machines and the broker, in both directions.
func (in *injection) late(ctx context.Context, wanted []*machine) (bool, error) {
	chosen, done, err := in.occupy(wanted, netLock)
	if err != nil {
		return false, err
	}
	defer done()
	delay := time.Duration(20+in.random.IntN(400)) * time.Millisecond
	in.note = delay.String()
	set := func(d time.Duration) error {
		return all(chosen, func(m *machine) error {
			return m.setTrouble(func(t *record.Trouble) { t.BrokerDelay = record.Duration(d) })
		})
	}
	err = set(delay)
	sleep(ctx, in.lasts)
	return err == nil, errors.Join(err, set(0))
}

// bad has the load run a misbehaving client: flood, deaf or watchers.
func (in *injection) bad(ctx context.Context, kind string) (bool, error) {
	in.on = []string{"the broker"}
	const settling = 8 * time.Second // time for ten thousand clients to begin to watch
	form := url.Values{"kind": {kind}, "lasts": {(in.lasts + settling).String()}}
	_, err := in.askLoad(ctx, http.MethodPost, "/bad", form, in.lasts+toolTime)
	return err == nil, err
}
