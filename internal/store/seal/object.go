package seal

import (
	"encoding/binary"

	"brisk.dev/brisk/internal/fault"
)

// A sealed object: docs/format/seal.md.
const (
	objectMagic   = "BRSKSEAL"
	objectVersion = 1
	objectHeader  = 24 // bytes: magic, version, zero, ID

	// ObjectOverhead is how many bytes longer a sealed object is than its data.
	ObjectOverhead = objectHeader + Overhead
)

// SealObject gives the sealed form of a whole object. It opens only as the same
// kind and name, and only with these keys.
func (k *Keys) SealObject(kind, name string, data []byte) []byte {
	b := make([]byte, 0, ObjectOverhead+len(data))
	b = append(b, objectMagic...)
	b = binary.LittleEndian.AppendUint32(b, objectVersion)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = append(b, k.id[:]...)
	return k.synthetic(b, k.objectKey(kind, name), b, data)
}

// OpenObject gives the data of a sealed object, in its memory, which is used up, or an error of class
// fault.Corrupt that says whose keys it does not open with. kind and name are not
// part of the error.
func (k *Keys) OpenObject(kind, name string, sealed []byte) ([]byte, error) {
	if len(sealed) < ObjectOverhead || string(sealed[:8]) != objectMagic {
		return nil, fault.New(fault.Corrupt, "it is not sealed")
	}
	if v := binary.LittleEndian.Uint32(sealed[8:]); v != objectVersion {
		return nil, fault.New(fault.Corrupt, "it is sealed in version %d: this Brisk opens %d", v, objectVersion)
	}
	if id := ID(sealed[16:objectHeader]); id != k.id {
		return nil, fault.New(fault.Corrupt, "it is sealed with the key %s, and workspace %q has the key %s here", id, k.workspace, k.id)
	}
	data, err := authentic(k.objectKey(kind, name), sealed[:objectHeader], sealed[objectHeader:])
	if err != nil {
		return nil, fault.New(fault.Corrupt, "it does not authenticate with the key of workspace %q (%s)", k.workspace, k.id)
	}
	return data, nil
}

func (k *Keys) objectKey(kind, name string) [32]byte {
	return k.objects.sum(length(kind), []byte(kind), []byte(name))
}
