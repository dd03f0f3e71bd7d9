package settings

import "holdfast/fsm"

// AutoTotalBytes returns what limits.totalBytes: auto is for a process that may use so many bytes
// of memory. Of several members the least counts.
//
// A quarter leaves room: a key costs about 103 bytes beyond key and value, the dedup table needs
// memory, too, and while a snapshot is restored there are two states. All members refuse what
// exceeds the limit. Without it, all could run out of memory at once. Limits above 128 MiB are
// rounded down to 64 MiB steps.
func AutoTotalBytes(memory int64) int64 {
	const grain = 64 << 20
	limit := memory / 4
	if limit > 2*grain {
		limit -= limit % grain
	}
	return limit
}

// Replicated returns the settings that decide the outcomes of requests. They are replicated through
// the log. The result has no policy.
func (s *Settings) Replicated() fsm.Settings {
	replicated := fsm.DefaultSettings()
	replicated.CaseInsensitive = s.Protocol.CaseInsensitive
	switch s.Protocol.Dialect {
	case "documented":
		replicated.Dialect = fsm.DialectRuleDocumented
	case "sdk":
		replicated.Dialect = fsm.DialectRuleSDK
	}
	limits := &replicated.Limits
	limits.KeyBytes, limits.ValueBytes, limits.Keys = int64(s.Limits.KeyBytes),
		int64(s.Limits.ValueBytes), s.Limits.Keys
	limits.Watches, limits.DedupEntries = s.Limits.Watches, s.Limits.DedupEntries
	limits.KeysPerClient, limits.BytesPerClient = s.Limits.KeysPerClient,
		int64(s.Limits.BytesPerClient)
	limits.WatchesPerClient, limits.DedupPerClient = s.Limits.WatchesPerClient,
		s.Limits.DedupEntriesPerClient
	if s.Limits.TotalBytes == Auto {
		limits.TotalBytes, replicated.TotalBytesAuto = 0, true
	} else {
		limits.TotalBytes = int64(s.Limits.TotalBytes)
	}
	replicated.WatchTTL = s.Watch.TTL.Milliseconds()
	replicated.Mirrors = s.Mirrors
	replicated.NotificationExpiry = s.Watch.NotificationExpiry.Milliseconds()
	return replicated
}
