package fsm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"holdfast/hlc"
)

// modelRecord is what the naive model of TestValuesAgainstAMap keeps for a key.
type modelRecord struct {
	value    string
	deadline int64
	owner    Owner
}

// The values agree with a map, also when the hashes of different keys are equal.
func TestValuesAgainstAMap(t *testing.T) {
	for name, mask := range map[string]uint64{
		"no collisions": newValues().hashMask,
		"four hashes":   3, "one hash": 0,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				checkValuesAgainstAMap(t, rand.New(rand.NewPCG(seed, 1)), mask)
			}
		})
	}
}

// checkValuesAgainstAMap draws operations. Each snapshot must show what the model was when it was
// captured, whatever came after.
func checkValuesAgainstAMap(t *testing.T, random *rand.Rand, mask uint64) {
	t.Helper()
	v := newValues()
	v.hashMask = mask
	model := make(map[string]modelRecord)
	type capture struct {
		check   func() error
		release func()
	}
	var captures []capture
	for step := range 400 {
		key := fmt.Sprint("key-", random.IntN(20))
		found, ok := v.find([]byte(key))
		if known, present := model[key]; ok != present || ok &&
			(found.key() != key || found.value() != known.value ||
				found.deadline != known.deadline) {
			t.Fatalf("step %d: found %v, %t, want %v, %t", step, found, ok, known, present)
		}
		switch random.IntN(8) {
		case 0, 1:
			if ok {
				v.delete(found)
				delete(model, key)
			}
		case 2:
			byKey, release := v.capture()
			then := maps.Clone(model)
			captures = append(captures,
				capture{func() error { return sameRecords(byKey.Scan, then) }, release})
		case 3:
			if len(captures) > 0 {
				i := random.IntN(len(captures))
				captures[i].release()
				captures = slices.Delete(captures, i, i+1)
			}
		default:
			added := modelRecord{
				fmt.Sprint("value-", step), noDeadline,
				Owner{Name: fmt.Sprint("client-", random.IntN(3)), IsUser: random.IntN(2) == 0},
			}
			if random.IntN(2) == 0 {
				added.deadline = int64(random.IntN(100))
			}
			stored := v.set(found, []byte(key), []byte(added.value), hlc.Clock{Wall: int64(step)},
				added.deadline, v.owners.holding(added.owner, hlc.Timestamp{}, found))
			if stored.version().Wall != int64(step) || stored.key() != key {
				t.Fatalf("step %d: stored %v", step, stored)
			}
			model[key] = added
		}
		for _, c := range captures {
			if err := c.check(); err != nil {
				t.Fatalf("step %d: a snapshot changed: %v", step, err)
			}
		}
		if err := sameRecords(v.byKey.Scan, model); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		checkSums(t, &v, model)
	}
}

// checkSums compares the counts, the sizes and the first deadline that the values keep with those
// of the model.
func checkSums(t *testing.T, v *values, model map[string]modelRecord) {
	t.Helper()
	bytes, first, deadlines := int64(0), int64(noDeadline), 0
	owned := make(map[Owner]growth)
	for key, known := range model {
		size := int64(len(key) + len(known.value))
		bytes += size
		its := owned[known.owner]
		owned[known.owner] = growth{keys: its.keys + 1, bytes: its.bytes + size}
		if first = min(first, known.deadline); known.deadline != noDeadline {
			deadlines++
		}
	}
	due, ok := v.byDeadline.Min()
	if v.bytes != bytes || v.len() != len(model) || v.byDeadline.Len() != deadlines || ok &&
		due.deadline != first || v.index.len()+v.unindexed != len(model) {
		t.Fatalf("%d bytes, %d keys, %d deadlines, first %v, %d indexed, %d not; want %d bytes, %d keys, %d deadlines, first %d",
			v.bytes, v.len(), v.byDeadline.Len(), due, v.index.len(), v.unindexed, bytes,
			len(model), deadlines, first)
	}
	for owner, its := range v.owners {
		if want := owned[owner]; want.keys != its.keys || want.bytes != its.bytes {
			t.Fatalf("%v has %d keys and %d bytes, want %+v", owner, its.keys, its.bytes, want)
		}
	}
	if len(v.owners) != len(owned) {
		t.Fatalf("%d owners, want %d", len(v.owners), len(owned))
	}
}

// sameRecords compares records in the order of their keys with a model.
func sameRecords(scan func(func(*record) bool), model map[string]modelRecord) error {
	keys := slices.Sorted(maps.Keys(model))
	var different error
	scan(func(r *record) bool {
		switch {
		case len(keys) == 0:
			different = fmt.Errorf("more keys than %d", len(model))
		case r.key() != keys[0] || r.value() != model[keys[0]].value ||
			r.deadline != model[keys[0]].deadline:
			different = fmt.Errorf("%q = %q until %d, want %q = %v", r.key(), r.value(), r.deadline,
				keys[0], model[keys[0]])
		default:
			keys = keys[1:]
		}
		return different == nil
	})
	if different == nil && len(keys) > 0 {
		different = fmt.Errorf("without %q", keys)
	}
	return different
}

// While a snapshot is unreleased, a SET replaces the record. Once the snapshot is released, a SET
// changes the record in place.
func TestSetInPlaceNeedsNoSnapshot(t *testing.T) {
	v := newValues()
	nobody := v.owners.holding(Owner{}, hlc.Timestamp{}, nil)
	first := v.set(nil, []byte("key"), []byte("1"), hlc.Clock{}, noDeadline, nobody)
	_, release := v.capture()
	second := v.set(first, []byte("key"), []byte("2"), hlc.Clock{}, noDeadline, nobody)
	if second == first || first.value() != "1" {
		t.Error("a captured record was changed")
	}
	release()
	if third := v.set(second, []byte("key"), []byte("3"), hlc.Clock{}, noDeadline,
		nobody); third != second {
		t.Error("a record was replaced although no snapshot has it")
	}
}

func BenchmarkValuesSet(b *testing.B) {
	const keys = 1_000_000
	v := newValues()
	names := make([][]byte, keys)
	for i := range names {
		names[i] = fmt.Appendf(nil, "key-%016d", i)
		v.set(nil, names[i], make([]byte, 100), hlc.Clock{}, noDeadline, nil)
	}
	random, value := rand.New(rand.NewPCG(1, 1)), make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		key := names[random.IntN(keys)]
		found, _ := v.find(key)
		v.set(found, key, value, hlc.Clock{}, noDeadline, nil)
	}
}
