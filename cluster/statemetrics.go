package cluster

import (
	"slices"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
)

// RegisterState registers gauges that read the node's state when they are scraped. It panics if the
// registry already has one of them.
func RegisterState(registry prometheus.Registerer, node *Node) {
	gauge := func(name, help string, value func(Status) float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(node.Status()) }))
	}
	gauge("holdfast_keys", "Keys in the store.",
		func(s Status) float64 { return float64(s.State.Keys) })
	gauge("holdfast_bytes", "Bytes of all keys and values.",
		func(s Status) float64 { return float64(s.State.Bytes) })
	gauge("holdfast_watches", "Watches of clients on keys.",
		func(s Status) float64 { return float64(s.State.Watches) })
	gauge("holdfast_dedup_entries", "Outcomes in the dedup table.",
		func(s Status) float64 { return float64(s.State.Remembered) })
	gauge("holdfast_dedup_reply_bytes", "Bytes of the replies of transactions in the dedup table.",
		func(s Status) float64 { return float64(s.State.ReplyBytes) })
	gauge("holdfast_notifications_unpublished", "Notifications beyond the delivery watermark.",
		func(s Status) float64 { return float64(s.State.Unpublished) })
	gauge("holdfast_raft_term", "Raft's current term.",
		func(s Status) float64 { return float64(s.Term) })
	gauge("holdfast_raft_commit_index", "Raft's commit index.",
		func(s Status) float64 { return float64(s.Commit) })
	gauge("holdfast_raft_applied_index", "Index of the last entry in the state.",
		func(s Status) float64 { return float64(s.State.Index) })
	gauge("holdfast_raft_last_index", "Index of the last entry in the log.",
		func(s Status) float64 { return float64(s.Last) })
	gauge("holdfast_members", "Members of the cluster.",
		func(s Status) float64 { return float64(len(s.Servers)) })
	gauge("holdfast_voters", "Members that vote.",
		func(s Status) float64 { return float64(CountVoters(s.Servers)) })
	gauge("holdfast_members_answering",
		"Members, this one included, that answered when they were last asked.",
		func(Status) float64 { return float64(node.memberWatch.peers.Answering()) })
	gauge("holdfast_voters_answering",
		"Members that vote and answered when they were last asked, this one included if it votes.",
		func(s Status) float64 {
			return float64(CountVoters(slices.DeleteFunc(slices.Clone(s.Servers),
				func(server raft.Server) bool {
					_, answers := node.memberWatch.peers.Of(server.ID)
					return !answers && server.ID != s.ID
				})))
		})
	gauge("holdfast_clock_offset_seconds",
		"How far this node's clock is ahead of the cluster's; 0 until a majority of the voters has answered a poll.", func(Status) float64 {
			offset, _ := node.ClockOffset()
			return offset.Seconds()
		})
	gauge("holdfast_disk_free_bytes", "Free disk space where the data is.", func(Status) float64 {
		free, _ := node.env.FreeSpace()
		return float64(free)
	})
	gauge("holdfast_disk_low", "1 while free disk space is below node.minFreeDisk, else 0.",
		func(Status) float64 {
			if node.self.diskLow() {
				return 1
			}
			return 0
		})
	gauge("holdfast_other_broker",
		"1 while this node is at another broker than the others, else 0.", func(s Status) float64 {
			if s.OtherBroker != nil {
				return 1
			}
			return 0
		})
	gauge("holdfast_replicas_differ",
		"1 if this node leads, and the replicas had different states when it compared them last, else 0.", func(s Status) float64 {
			if s.Divergence != nil {
				return 1
			}
			return 0
		})
	gauge("holdfast_members_disk_low", "Members that are short of disk space, as this node knows.",
		func(s Status) float64 { return float64(len(s.DiskLow)) })
	gauge("holdfast_storage_low",
		"1 while this node serves and refuses SETs that need more space, because a majority of the voters has none, else 0.", func(s Status) float64 {
			if s.StorageLow {
				return 1
			}
			return 0
		})
	for name, limit := range map[string]func(*fsm.Limits) int64{
		"keys":          func(l *fsm.Limits) int64 { return l.Keys },
		"bytes":         func(l *fsm.Limits) int64 { return l.TotalBytes },
		"watches":       func(l *fsm.Limits) int64 { return l.Watches },
		"dedup_entries": func(l *fsm.Limits) int64 { return l.DedupEntries },
	} {
		gauge("holdfast_limit_"+name, "Limit in force of holdfast_"+name+"; 0 is no limit.",
			func(Status) float64 {
				settings, _ := node.self.settings()
				return float64(limit(&settings.Limits))
			})
	}
	gauge("holdfast_log_version", "Version of the log that is in force.",
		func(s Status) float64 { return float64(s.State.Version) })
	gauge("holdfast_cluster_time_seconds", "Cluster time, which decides expiry.",
		func(s Status) float64 { return float64(s.State.Now) / 1000 })
}

// Limit is a limit of the settings in force, and how much of it is used.
type Limit struct {
	Name        string // of the setting
	Used, Bound int64  // Bound 0 is no limit
}

// LimitsOf returns the limits of what the state may hold.
func LimitsOf(limits *fsm.Limits, state *fsm.Status) []Limit {
	return []Limit{
		{"limits.keys", int64(state.Keys), limits.Keys},
		{"limits.totalBytes", state.Bytes, limits.TotalBytes},
		{"limits.watches", int64(state.Watches), limits.Watches},
		{"limits.dedupEntries", int64(state.Remembered), limits.DedupEntries},
	}
}

// CountVoters returns how many of the members vote.
func CountVoters(servers []raft.Server) (count int) {
	for _, server := range servers {
		if server.Suffrage == raft.Voter {
			count++
		}
	}
	return count
}
