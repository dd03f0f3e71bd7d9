package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"holdfast/hlc"
	"holdfast/internal/policy"
)

// fullEntry returns an entry in which every field of every message is set. The numbers of one
// message differ.
func fullEntry(t testing.TB) *Entry {
	rules, err := policy.Compile([]policy.Rule{{
		ClientIDs: []string{"a", ""}, Usernames: []string{"u"},
		Attributes: [][]policy.Attribute{{{Name: "n", Value: "v"}}},
		Resources: []policy.Resource{{
			Access: policy.Write, KeyType: policy.String,
			Keys: []string{"k", ""},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	settings := Settings{
		Dialect: DialectRuleSDK, CaseInsensitive: true, WatchTTL: 21, NotificationExpiry: 22,
		TotalBytesAuto: true, Policy: rules,
		Limits:  Limits{31, 32, 33, 34, 35, 36, 37, 42, 43, 40, 41, 38, 39},
		Mirrors: []Mirror{{Keys: "k*", Topic: "t/"}},
	}
	return &Entry{
		Term: 1, Number: 2, Elapsed: 3, Wall: 4, Published: 5, StorageLow: true, HorizonAge: 6,
		Commands: []Command{
			{
				Kind: KindSet, ID: RequestID{1, 2, 3},
				Principal: policy.Principal{
					ClientID: "c", Username: "u",
					Attributes: []policy.Attribute{{Name: "a", Value: "b"}},
				},
				Dialect: SDK, Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 300),
				Expected: []byte("e"), Condition: IfAbsentOrEqual, TTL: 6,
				Timestamp: hlc.Timestamp{Wall: 7, Counter: 8, NodeID: "n"},
				Token:     hlc.Timestamp{Wall: 9, Counter: 10, NodeID: "m"}, Lifetime: 11,
				CaseError: ErrorSyntax, Error: ErrorArguments, LateError: ErrorMissingTimestamp,
				Oversize: true, Unidentified: true,
				BrokerTime: -12, Everyone: true,
				Rejected: []Rejection{{
					ID: RequestID{4}, ClientID: "r", Lifetime: 13,
					Dialect: SDK, Silent: true,
				}},
				NotificationIndex: 14, ChangedAt: 15, Nonce: 16, Version: Version,
				Settings: &settings, KeepPolicy: true, Offset: 22,
				ExpectedVersion: hlc.Timestamp{Wall: 23, Counter: 24, NodeID: "o"}, Pattern: true,
				MaxReply: 25,
				Floor:    Floor{Clock: hlc.Clock{Wall: 18, Counter: 19}, Now: 20, Wall: 21},
			},
			transaction(),
			{Kind: KindDel},
		},
	}
}

// transaction returns a transaction whose operations have their own fields and those that they
// inherit.
func transaction() Command {
	c := Command{
		Kind: KindTxn, ID: RequestID{5},
		Principal: policy.Principal{
			ClientID: "c", Username: "u",
			Attributes: []policy.Attribute{{Name: "a", Value: "b"}},
		},
		Dialect: SDK, Timestamp: hlc.Timestamp{Wall: 7, Counter: 8, NodeID: "n"},
		Token: hlc.Timestamp{Wall: 9, NodeID: "m"}, Unidentified: true, MaxReply: 9,
		Operations: []Command{
			{
				Kind: KindSet, Key: []byte("k"), Value: []byte("v"), Expected: []byte("e"),
				Condition: IfAbsentOrEqual, TTL: 6, CaseError: ErrorSyntax,
				LateError: ErrorMissingTimestamp, Oversize: true,
			},
			{
				Kind: KindDel, Key: []byte("d"), Condition: IfVersion,
				ExpectedVersion: hlc.Timestamp{Wall: 23, Counter: 24, NodeID: "o"},
			},
			{Kind: KindVDel, Key: []byte("w"), Value: []byte("x")},
			{Kind: KindGet, Key: []byte("g")},
			{Kind: KindInvalid, Error: ErrorArguments},
		},
	}
	c.inherit()
	return c
}

func TestDecodedEntryIsTheEncodedOne(t *testing.T) {
	want := fullEntry(t)
	got, err := DecodeEntry(AppendEntry(nil, want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
	}
}

// The hand-written codec writes exactly what entry.proto says: the protobuf runtime reads it, finds
// every field set and none unknown, and writes the same bytes.
func TestEntryIsTheSchema(t *testing.T) {
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{}}
	files, err := compiler.Compile(context.Background(), "entry.proto")
	if err != nil {
		t.Fatal(err)
	}
	message := dynamicpb.NewMessage(files[0].Messages().ByName("Entry"))
	data := AppendEntry(nil, fullEntry(t))
	if err := proto.Unmarshal(data, message); err != nil {
		t.Fatal(err)
	}
	seen := map[protoreflect.FullName]bool{}
	var walk func(protoreflect.Message)
	walk = func(m protoreflect.Message) {
		if len(m.GetUnknown()) > 0 {
			t.Errorf("%s has unknown fields", m.Descriptor().FullName())
		}
		m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			seen[field.FullName()] = true
			switch {
			case field.Message() == nil:
			case field.IsList():
				for i := range value.List().Len() {
					walk(value.List().Get(i).Message())
				}
			default:
				walk(value.Message())
			}
			return true
		})
	}
	walk(message)
	for i := range files[0].Messages().Len() {
		fields := files[0].Messages().Get(i).Fields()
		for j := range fields.Len() {
			if name := fields.Get(j).FullName(); !seen[name] {
				t.Errorf("%s is never written, or the test does not set it", name)
			}
		}
	}
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil || !bytes.Equal(again, data) {
		t.Errorf("the protobuf runtime writes other bytes: %v\n%x\n%x", err, again, data)
	}
}

func seal(body []byte) []byte {
	return appendChecksum(bytes.Clone(body), crc32.Checksum(body, castagnoli()))
}

func TestDecodeEntryRefuses(t *testing.T) {
	for _, test := range []struct {
		name string
		body []byte
		want error
	}{
		{"an unknown field", appendUint(nil, 9, 1), ErrUnknown},
		{
			"an unknown field of a command",
			appendMessage(nil, 7,
				func(b []byte) []byte { return appendUint(appendUint(b, 1, 2), 99, 1) }),
			ErrUnknown,
		},
		{"an unknown kind", appendMessage(nil, 7,
			func(b []byte) []byte { return appendUint(b, 1, 200) }), ErrUnknown},
		{
			"an unknown condition",
			appendMessage(nil, 7,
				func(b []byte) []byte { return appendUint(appendUint(b, 1, 1), 10, 9) }),
			ErrUnknown,
		},
		{
			"no kind", appendMessage(nil, 7, func(b []byte) []byte { return appendUint(b, 11, 1) }),
			ErrDamaged,
		},
		{"a wrong wire type", appendBytes(nil, 1, "x"), ErrDamaged},
		{
			"a short id", appendMessage(nil, 7,
				func(b []byte) []byte { return appendBytes(appendUint(b, 1, 2), 2, "short") }),
			ErrDamaged,
		},
		{
			"a message that is longer than the entry",
			protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.BytesType), 1<<40),
			ErrDamaged,
		},
		{
			"an operation of another kind", operationOf(appendUint(nil, 1, uint64(KindScan))),
			ErrDamaged,
		},
		{"an operation without a kind", operationOf(nil), ErrDamaged},
		{
			"an operation with operations",
			operationOf(appendElement(appendUint(nil, 1, uint64(KindSet)), 33,
				appendUint(nil, 1, uint64(KindSet)))), ErrDamaged,
		},
		{
			"a Configure of nothing",
			appendMessage(nil, 7,
				func(b []byte) []byte { return appendUint(b, 1, uint64(KindConfigure)) }),
			ErrDamaged,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := DecodeEntry(seal(test.body)); !errors.Is(err, test.want) {
				t.Errorf("%s: %v", test.name, err)
			}
		})
	}
	for _, data := range [][]byte{nil, {1}, []byte("12345"), []byte("1234567890")} {
		t.Run(fmt.Sprintf("%q", data), func(t *testing.T) {
			if _, err := DecodeEntry(data); !errors.Is(err, ErrDamaged) {
				t.Errorf("%q: %v", data, err)
			}
		})
	}
}

// operationOf returns the body of an entry that has one transaction with one operation.
func operationOf(operation []byte) []byte {
	return appendMessage(nil, 7,
		func(b []byte) []byte {
			return appendElement(appendUint(b, 1, uint64(KindTxn)), 33,
				operation)
		})
}

// FuzzDecodeEntry appends a valid checksum to the bytes: random ones would hardly ever have one.
func FuzzDecodeEntry(f *testing.F) {
	for _, entry := range []*Entry{
		{},
		fullEntry(f),
		{Term: 1, Number: 1, Commands: []Command{{Kind: KindGet, Key: []byte("k")}}},
	} {
		data := AppendEntry(nil, entry)
		f.Add(data[:len(data)-checksumSize])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		entry, err := DecodeEntry(seal(body))
		if err != nil {
			return
		}
		data := AppendEntry(nil, entry)
		again, err := DecodeEntry(data)
		if err != nil || !bytes.Equal(AppendEntry(nil, again), data) {
			t.Fatalf("%+v: %v", entry, err)
		}
		m := New()
		if _, err := m.Apply(1, entry.Term, data); err == nil {
			snapshotOf(t, m)
		}
	})
}

func BenchmarkApply(b *testing.B) {
	l := newLeader(b)
	commands := make([]Command, 256)
	var data [][]byte
	for n := range 64 {
		for i := range commands {
			commands[i] = l.set(string(rune('a'+i%26))+"-key-of-20-bytes...",
				string(make([]byte, 100)), id(RequestID{byte(n), byte(i), 1}))
		}
		data = append(data, AppendEntry(nil,
			&Entry{Term: 1, Number: uint64(n + 1), Wall: l.wall, Commands: commands}))
	}
	b.ReportAllocs()
	for b.Loop() {
		m := New()
		first := AppendEntry(nil, &Entry{Commands: []Command{{Kind: KindLeaderStart}}})
		_, _ = m.Apply(1, 1, first)
		for n, d := range data {
			if _, err := m.Apply(uint64(n+2), 1, d); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64*256), "ns/command")
}
