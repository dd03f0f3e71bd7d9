package fsm

import (
	"strconv"

	"holdfast/internal/glob"
)

// Limit is what made a command fail with ErrorQuota. Clients are told its name beside the error.
type Limit uint8

// The limits. NoLimit is that of results with another error, and of copies of a request.
const (
	NoLimit Limit = iota
	// a key or a value was so long that the leader left it out of the log
	LimitSizes
	LimitKeyBytes
	LimitValueBytes
	LimitTopic // the topic of the notifications would be longer than MQTT allows
	LimitKeys
	LimitTotalBytes
	LimitKeysPerClient
	LimitBytesPerClient
	LimitDisk
	LimitWatches
	LimitWatchBytes
	LimitWatchesPerClient
	LimitPatterns
	LimitPatternBytes
	LimitTxnReads
	LimitTxnPatterns
	limitsEnd // the number of limits; not one of them
)

// AllLimits returns all of them but NoLimit.
func AllLimits() (all []Limit) {
	for l := NoLimit + 1; l < limitsEnd; l++ {
		all = append(all, l)
	}
	return all
}

// Name returns the setting of the limit or, for one that cannot be set, a word for it: size is
// limits.keyBytes or limits.valueBytes.
func (l Limit) Name() string {
	return [limitsEnd]string{
		NoLimit:    "none",
		LimitSizes: "size", LimitKeyBytes: "limits.keyBytes",
		LimitValueBytes: "limits.valueBytes", LimitTopic: "notification_topic",
		LimitKeys: "limits.keys", LimitTotalBytes: "limits.totalBytes",
		LimitKeysPerClient:  "limits.keysPerClient",
		LimitBytesPerClient: "limits.bytesPerClient", LimitDisk: "node.minFreeDisk",
		LimitWatches: "limits.watches", LimitWatchBytes: "watch_bytes",
		LimitWatchesPerClient: "limits.watchesPerClient",
		LimitPatterns:         "patterns", LimitPatternBytes: "pattern_bytes",
		LimitTxnReads:    "txn_read_bytes",
		LimitTxnPatterns: "txn_patterns",
	}[l]
}

// Text returns the name of the limit and its bound, where that is one number.
func (l Limit) Text(limits *Limits) string {
	bound := l.bound(limits)
	if bound == 0 {
		return l.Name()
	}
	return l.Name() + ": " + strconv.FormatInt(bound, 10)
}

func (l Limit) bound(limits *Limits) int64 {
	switch l {
	case LimitKeyBytes:
		return limits.KeyBytes
	case LimitValueBytes:
		return limits.ValueBytes
	case LimitTopic:
		return maxNotificationTopic
	case LimitKeys:
		return limits.Keys
	case LimitTotalBytes:
		return limits.TotalBytes
	case LimitKeysPerClient:
		return limits.KeysPerClient
	case LimitBytesPerClient:
		return limits.BytesPerClient
	case LimitWatches:
		return limits.Watches
	case LimitWatchBytes:
		return limits.WatchBytes
	case LimitWatchesPerClient:
		return limits.WatchesPerClient
	case LimitPatternBytes:
		return glob.MaxSize
	case LimitTxnReads:
		return max(maxReadBytes, limits.ValueBytes)
	default:
		return 0
	}
}

// exceededSize returns which limit on sizes a command exceeds that failed with ErrorQuota.
func (m *Machine) exceededSize(command *Command) Limit {
	limits := &m.settings.Limits
	switch {
	case command.Oversize:
		return LimitSizes
	case command.Kind == KindScan:
		return LimitPatternBytes
	case int64(len(command.Key)) > limits.KeyBytes:
		return LimitKeyBytes
	case int64(len(command.Value)) > limits.ValueBytes,
		int64(len(command.Expected)) > limits.ValueBytes:
		return LimitValueBytes
	case command.Error == ErrorQuota: // the front end did not parse it
		return LimitSizes
	default:
		return LimitTopic
	}
}
