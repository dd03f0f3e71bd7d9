package mutants

import (
	"slices"

	"holdfast/test/overlay"
)

// All returns the mutants, by the part that they break.
func All() []Mutant {
	return slices.Concat(stateMachine(), raftLog(), replication(), frontEnd(), mirrors(),
		takeover(), clientLibrary())
}

// one returns a mutant that consists of one edit.
func one(name, what, check, file, before, after string) Mutant {
	return Mutant{
		Name: name, What: what, Check: check,
		Edits: []overlay.Edit{{File: file, Old: before, New: after}},
	}
}

func raftLog() []Mutant {
	return []Mutant{
		one("wal_unauthenticated", "a torn frame of the log counts as one", "unexpected end",
			"cluster/wal/segment.go",
			"if want != mac(head[4:]) {", "if false {").shownBy("power failure", "kill -9"),
		one("wal_unsynced", "entries are acknowledged before they are synced",
			"unexpected end, linearizable", "cluster/wal/log.go",
			"\tif err := l.newest().file.Sync(); err != nil {\n\t\treturn err\n\t}\n\tl.mu.Lock()\n\tdefer",
			"\tl.mu.Lock()\n\tdefer").shownBy("power failure", "kill all"),
	}
}

func stateMachine() []Mutant {
	return []Mutant{
		one("dedup_off", "no deduplication", "exactly once", "fsm/dedup.go",
			"\tat, ok := d.places[id]\n\tif !ok {\n",
			"\tat, ok := d.places[id]\n\tif true || !ok {\n"),
		one("dedup_crowded", "deduplication forgets when it is full", "exactly once",
			"fsm/dedup.go",
			"\tmain := limits.DedupEntries - limits.DedupEntries/10\n",
			`	for int64(d.len()) >= limits.DedupEntries-limits.DedupEntries/10 {
		key, due, ok := d.byExpiry.Min()
		if !ok {
			break
		}
		if !due.sorted {
			due = d.rebuild(key, due)
		}
		if m, at := due.first(); d.isLive(&m, at) {
			d.drop(&m)
		} else {
			due.stale--
		}
		if due.removeFirst(&d.chunks); due.len() == 0 {
			d.byExpiry.Delete(key)
		}
	}
	if true {
		return true
	}
	main := limits.DedupEntries - limits.DedupEntries/10
`),
		one("copy_unprolonged", "a copy does not prolong how long the outcome is remembered",
			"exactly once", "fsm/execute.go",
			"\tm.dedup.prolong(earlier, m.now+lifetime)\n",
			"\t_, _ = earlier, lifetime\n").shownBy("late node that comes to lead"),
		one("entry_order", "no check of an entry's term and number",
			"lock lost early, expired early", "fsm/machine.go",
			"\treturn term == m.leader.term && entry.Term == term && entry.Number == m.leader.lastNumber+1\n", "\treturn true\n"),
		one("scan_skips", "a continuation token skips the key that did not fit", "scan",
			"fsm/scan.go",
			"cost; !more {\n\t\t\t\tnext = last\n", "cost; !more {\n\t\t\t\tnext = key\n"),
		one("pattern_first_prefix",
			"a change is matched against the patterns with its longest prefix only",
			"notifications", "fsm/patterns.go",
			"\t\tgroup := x.groups[key[:prefix.size]]\n",
			"\t\tif len(found) > 0 {\n\t\t\tbreak\n\t\t}\n\t\tgroup := x.groups[key[:prefix.size]]\n"),
		one("pattern_left_out", "a snapshot leaves out watches of patterns", "notifications",
			"fsm/snapshot.go",
			"\ts.watches.Scan(func(w *watch) bool {\n",
			"\ts.watches.Scan(func(w *watch) bool {\n\t\tif w.isPattern {\n\t\t\treturn true\n\t\t}\n"),
		one("pattern_any", "a pattern matches what only begins like it", "notifications",
			"fsm/patterns.go",
			"w.pattern.MatchText(key) && fitsTopic", "fitsTopic"),
		one("if_version_off", "a condition on the version holds for any value", "linearizability",
			"fsm/execute.go",
			"return present && found.version().Timestamp(hlc.StoreNodeID) == c.ExpectedVersion",
			"return present"),
		one("txn_partial", "a transaction whose condition is not met keeps what comes before it",
			"linearizability", "fsm/txn.go",
			"\tcase unmet >= 0:\n",
			"\tcase unmet >= 0:\n\t\tfor i := range unmet {\n\t\t\tif replies[i].Code == CodeNone {\n\t\t\t\tm.change(position, &operations[i], found[i], outcome, &replies[i])\n\t\t\t}\n\t\t}\n"),
		one("txn_values_forgotten", "a copy of a transaction is not told what the first read",
			"exactly once", "fsm/replies.go",
			"strings.Clone(results[i].Value)", "strings.Clone(\"\")"),
		one("txn_unheard", "nobody is notified of what a transaction changes", "notifications",
			"fsm/txn.go",
			"\t\tm.change(position, &operations[i], found[i], outcome, &replies[i])\n",
			"\t\twatches := m.watches\n\t\tm.watches = newWatches()\n\t\tm.change(position, &operations[i], found[i], outcome, &replies[i])\n\t\tm.watches = watches\n"),
		one("txn_unfenced", "what a transaction sets loses its fencing token", "fencing",
			"fsm/txn.go",
			"\t\toperation.Timestamp, operation.Token = c.Timestamp, c.Token\n",
			"\t\toperation.Timestamp = c.Timestamp\n"),
		one("fence_off", "no fencing", "fencing", "fsm/execute.go",
			"\tif token.TooFarAhead(m.wall) {\n\t\treturn ErrorTokenSkew\n\t}\n\tif !present || found.holding.token.IsZero() {\n", "\tif true {\n"),
		one("wall_expiry", "expiry by the wall clock", "expired early, lock lost early",
			"fsm/machine.go",
			"max(m.now, m.leader.start+entry.Elapsed)", "max(m.now, entry.Wall)"),
	}
}

func replication() []Mutant {
	const (
		confirm = "confirmTerm: confirmer.confirm}"
		instead = "confirmTerm: func(ctx context.Context, term uint64) error {\n"
	)
	return []Mutant{
		{
			Name: "ack_early", What: "acknowledge before commit", Check: "exactly once",
			Edits: []overlay.Edit{
				{File: "cluster/lead.go", Old: "import (\n", New: "import (\n\t\"bytes\"\n"},
				{
					File: "cluster/lead.go",
					Old:  "\treturn l.raft.ApplyLog(raft.Log{Data: data}, 0)\n",
					New: `	future := l.raft.ApplyLog(raft.Log{Data: data}, 0)
	var state bytes.Buffer
	copied := fsm.New()
	if err := l.state.Capture().Write(&state); err != nil || copied.Restore(&state) != nil {
		return future
	}
	if outcome, err := copied.Apply(copied.Status().Index+1, l.raft.CurrentTerm(), data); err == nil && !outcome.Skipped {
		l.state.View(func(*fsm.Machine) { l.commands.applied(outcome) })
	}
	return future
`,
				},
			},
		},
		one("verify_leader", "confirm leadership by raft's VerifyLeader, for which an answer to an earlier message counts", "linearizability, order of a client, versions", "cluster/open.go",
			confirm, instead+`		ctx, cancel := context.WithTimeout(ctx, confirmer.timeout)
		defer cancel()
		verified := make(chan error, 1)
		start(func() { verified <- n.self.raft.VerifyLeader().Error() })
		select {
		case err := <-verified:
			if err != nil {
				return fmt.Errorf("%w: %w", peer.ErrUnconfirmed, err)
			}
			return nil
		case <-ctx.Done():
			return peer.ErrUnconfirmed
		}
	}}`),
		one("leader_state", "confirm leadership by State() == Leader",
			"linearizability, order of a client, versions", "cluster/open.go",
			confirm, instead+"\t\tif n.self.raft.State() == raft.Leader {\n\t\t\treturn nil\n\t\t}\n\t\treturn confirmer.confirm(ctx, term)\n\t}}"),
		{
			Name: "read_cache", What: "reads from a cache of 100 ms",
			Check: "order of a client, linearizability", Edits: []overlay.Edit{
				{
					File: "cluster/readindex/reader.go", Old: "m.Read(reads[i].command)",
					New: "readCached(m, reads[i].command)",
				},
				{
					File: "cluster/readindex/reader.go", Old: "import (\n",
					New: "import (\n\t\"maps\"\n",
				},
				{File: "cluster/readindex/reader.go", Old: "\n// Environment ", New: `
type cached struct {
	result fsm.Result
	at     time.Time
}

var (
	cacheLock sync.Mutex
	cache     = make(map[string]cached) // of all readers, by key
)

func readCached(m *fsm.Machine, command *fsm.Command) fsm.Result {
	cacheLock.Lock()
	defer cacheLock.Unlock()
	now := time.Now()
	maps.DeleteFunc(cache, func(_ string, c cached) bool { return now.Sub(c.at) >= 100*time.Millisecond })
	if known, ok := cache[string(command.Key)]; ok && !now.Before(known.at) {
		return known.result
	}
	result := m.Read(command)
	cache[string(command.Key)] = cached{result, now}
	return result
}

// Environment `},
			},
		},
		one("heartbeat_term", "a heartbeat raises raft's term outside of its main goroutine",
			"replicas differ", "cluster/raftfix/transport.go",
			"(state != raft.Follower || heartbeat.Term > term) {",
			"heartbeat == nil {"),
		{
			Name: "clock_voters",
			What: "the cluster's clock asks voters only, and forgets the clock that the log carries", Check: "odd reply, version ahead", Edits: []overlay.Edit{
				{
					File: "cluster/clusterclock.go", Old: "known && server.ID != self {",
					New: "known && server.ID != self && server.Suffrage == raft.Voter {",
				},
				{
					File: "cluster/clusterclock.go",
					Old:  "\t\tbases = withLogBase(bases, c.logBase)\n", New: "",
				},
			},
			Faults: []string{
				"members demoted while a clock is wrong", "leadership transfer",
				"kill -9",
			},
		},
		one("proposed_late", "a write is proposed however long it has waited", "exactly once",
			"cluster/propose/proposer.go",
			"p.config.ProposalAge && commands[i].IsRemembered()", "p.config.ProposalAge && false"),
		{
			Name:  "votes_by_config",
			What:  "no vote for a candidate that is no voter in the receiver's configuration",
			Check: "recovery, convergence", Edits: []overlay.Edit{
				{
					File: "cluster/raftfix/transport.go",
					Old:  "RequestVote(id, target, request, response); err != nil ||\n\t\tresponse.Granted {",
					New:  "RequestVote(id, target, request, response); err != nil || true {",
				},
				{
					File: "cluster/raftfix/transport.go",
					Old:  "RequestPreVote(id, target, request, response); err != nil ||\n\t\tresponse.Granted {",
					New:  "RequestPreVote(id, target, request, response); err != nil || true {",
				},
			},
		},
		one("no_placeholder_at_snapshot",
			"a follower's log has no placeholders for what its snapshot covers", "recovery",
			"cluster/raftlog/checkedlog.go",
			"\tcase at == 0:\n", "\tcase at == 0 || true:\n").shownBy("wiped node", "snapshots",
			"leaders cut off one after the other", "leadership transfer",
			"leader that is deposed and does not hear of it"),
		one("older_snapshot", "a snapshot is restored over a newer state", "end",
			"cluster/raftfix/receive.go",
			"\tcase has:\n", "\tcase has && false:\n").shownBy("snapshots", "partition",
			"leader that is deposed and does not hear of it", "leadership transfer"),
		one("same_id", "a wiped node comes back under its id, and votes", "recovery",
			"cluster/identity.go",
			`raft.ServerID(i.Node + "." + i.Incarnation)`, "raft.ServerID(i.Node)"),
	}
}

func frontEnd() []Mutant {
	return []Mutant{
		one("watermark_high", "delivery watermark one too high", "notifications",
			"mqttfront/outbox/watermark.go",
			"w.index, moved = w.entries[0].index, true",
			"w.index, moved = w.entries[0].index+1, true"),
		one("scan_overtakes", "a SCAN overtakes its client's writes", "scan",
			"mqttfront/leader/execute.go",
			"\tcase r.Read && l.mayReadLocked(r):\n",
			"\tcase r.Read && (l.mayReadLocked(r) || isScan):\n"),
		one("unlogged_refusal", "overload error that is not in the log", "exactly once",
			"mqttfront/leader/execute.go",
			"\tif r.Read {\n", "\tif true {\n"),
		one("ack_at_arrival", "a request is acknowledged to the broker when it arrives",
			"unanswered", "mqttfront/leader/receive.go",
			"\t\tc.admission.Admit(ctx, r)\n",
			"\t\tdone()\n\t\tr.Done = func() {}\n\t\tc.admission.Admit(ctx, r)\n").shownBy(
			"kill -9", "flapping leadership"),
		one("expired_unlogged", "the refusal of a write that expired is left out of the log",
			"order of a client", "mqttfront/leader/execute.go",
			"r.isRemembered() && (late || expired)", "r.isRemembered() && late"),
		one("id_by_setting", "a request's identity depends on a node's own settings",
			"exactly once", "mqttfront/wire/decode.go",
			"requestID(claimedID(p.sourceID, topic), ",
			"requestID(r.Command.Principal.ClientID, ").shownBy("identity settings rolled",
			"leadership transfer", "kill -9"),
		one("age_ignored", "a write is executed however long ago the broker may have received it",
			"exactly once", "mqttfront/leader/request.go",
			"\treturn r.isRemembered() && !young",
			"\treturn false && !young").shownBy("stopped until outcomes are forgotten",
			"replies that the broker does not acknowledge", "kill -9"),
		one("horizon_returned",
			"the horizon is when the last probe was sent that returned, whatever is acknowledged",
			"exactly once", "mqttfront/session/connection.go",
			"for len(c.unsent) > 0 && c.acks.Sent(c.unsent[0].ack) {",
			"for len(c.unsent) > 0 {").shownBy("replies that the broker does not acknowledge",
			"kill -9"),
		one("age_outlives", "what a connection knows of ages outlives it", "exactly once",
			"mqttfront/session/connect.go",
			"logged, known := time.Now().Add(-s.log.HorizonAge()), s.probes.knownHorizon()",
			"logged, known := time.Now(), s.probes.knownHorizon()").shownBy(
			"replies that the broker does not acknowledge", "kill -9"),
	}
}

func mirrors() []Mutant {
	const compare, backlog = "mqttfront/mirror/pass.go", "mqttfront/mirror/backlog.go"
	return []Mutant{
		one("mirror_keeps_deleted", "a retained message of a key that does not exist stays",
			"mirrors", compare,
			"\tlike := w.value == string(message.Payload) &&",
			"\tlike := w.result == resultCleared || w.value == string(message.Payload) &&").shownBy(
			"broker restart", "kill -9", "pause"),
		one("mirror_missing", "what the broker does not have is not published when the leadership begins", "mirrors", compare,
			"missing := p.backlog.resolveExpected(t, !published)",
			"missing := p.backlog.resolveExpected(t, published && !published)").shownBy(
			"broker restart", "kill -9", "pause"),
		one("mirror_change_lost", "a change of a key that is just being published is not published",
			"mirrors", backlog,
			"\t\tif changedMeanwhile {\n\t\t\tb.push",
			"\t\tif changedMeanwhile && false {\n\t\t\tb.push").shownBy("slow links"),
	}
}

func takeover() []Mutant {
	return []Mutant{
		one("takeover_silent", "unpublished notifications dropped at takeover", "notifications",
			"mqttfront/leader/leader.go",
			"range m.Unpublished()", "range m.Unpublished()[:0]"),
		one("one_confirmation", "publishing connections taken over without the second confirmation",
			"notifications, order of a client, linearizability", "mqttfront/outbox/connections.go",
			"return publishers, c.env.Confirm(ctx)", "return publishers, nil"),
		one("reconnect_unconfirmed",
			"a publishing connection reconnects without the confirmation after CONNACK",
			"notifications, order of a client, linearizability",
			"mqttfront/outbox/connection.go",
			"\tif err := c.env.Confirm(ctx); err != nil {\n\t\tpublisher.Abort()\n\t\treturn nil, err\n\t}\n", "").shownBy("leader stopped on its way to the broker"),
		one("own_publish_connections", "publishing connections of the last leader not taken over",
			"linearizability, notifications, order of a client", "mqttfront/front.go",
			"\t\tCluster: config.Cluster, Connections:",
			"\t\tCluster: config.Cluster + config.Node, Connections:"),
		{
			Name:  "watermark_outlives",
			What:  "the delivery watermark of a leadership enters the log in a later one",
			Check: "notifications", Edits: []overlay.Edit{
				{
					File: "cluster/commands.go", Old: "type commandRouter struct {\n",
					New: "type commandRouter struct {\n\tpublished atomic.Uint64\n",
				},
				{
					File: "cluster/commands.go",
					Old:  "\tif p := c.proposer.Load(); p != nil {\n\t\tp.SetPublished(index)\n",
					New:  "\tc.published.Store(max(index, c.published.Load()))\n\tif p := c.proposer.Load(); p != nil {\n\t\tp.SetPublished(index)\n",
				},
				{
					File: "cluster/commands.go", Old: "\tc.proposer.Store(l.proposer)\n",
					New: "\tl.proposer.SetPublished(c.published.Load())\n\tc.proposer.Store(l.proposer)\n",
				},
			},
			Faults: []string{"leaders cut off one after the other"},
		},
		one("watermark_at_takeover", "delivery watermark jumps to the applied index at takeover",
			"notifications", "mqttfront/leader/leader.go",
			"\tsettings, _ := m.Settings()\n",
			"\tsettings, _ := m.Settings()\n\tl.store.SetPublished(status.Index)\n"),
	}
}

// clientLibrary are mutants of package client.
func clientLibrary() []Mutant {
	const locks, followers = "locks of apps", "followers of apps"
	return []Mutant{
		one("lock_renewed_late", "a lock that has expired is renewed, and counts as held", locks,
			"client/lock.go",
			"sentAt, left := now(), l.ttl-renewedAt.elapsed()",
			"sentAt, left := now(), l.ttl").shownBy("broker cut off", "partition", "kill all"),
		one("fence_unsent", "the client does not send fencing tokens", locks, "client/call.go",
			"\tif !token.IsZero() {\n\t\tproperties.User.Add(",
			"\tif false {\n\t\tproperties.User.Add("),
		one("gaps_untold", "a watcher is not told of gaps", followers, "client/watch.go",
			"\tif w.ended || (w.gapped && len(w.events) > 0) {\n\t\treturn\n",
			"\tif len(w.events) >= 0 {\n\t\treturn\n"),
		one("pass_covers_later_gaps", "a pass counts as the answer to a gap that came amid it",
			followers, "client/follow.go",
			"\t\t\tdue = due || event.Kind == EventGap\n",
			"\t\t\tdue = due || event.Kind == EventGap && current == nil\n"),
	}
}
