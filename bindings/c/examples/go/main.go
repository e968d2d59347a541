// Floe from Go: CGO_CFLAGS="$(pkg-config --cflags floe)" CGO_LDFLAGS="$(pkg-config --libs floe)" go run .
package main

// #include <floe.h>
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// Cache is a cache of bytes, which all goroutines may use at once.
type Cache struct{ cache *C.floe_cache }

// New makes a cache of so many entries.
func New(entries int) (*Cache, error) {
	options := C.floe_options_new()
	defer C.floe_options_free(options)
	C.floe_options_set_capacity(options, C.size_t(entries))
	cache := C.floe_cache_new(options)
	if cache == nil {
		return nil, errors.New(C.GoString(C.floe_error_message()))
	}
	return &Cache{cache}, nil
}

func pointer(bytes []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(bytes)) }

// Insert copies a value into the cache.
func (c *Cache) Insert(key, value []byte) {
	C.floe_insert(c.cache, pointer(key), C.size_t(len(key)), pointer(value), C.size_t(len(value)))
}

// Get returns a copy of a value.
func (c *Cache) Get(key []byte) ([]byte, bool) {
	var value *C.floe_value
	if C.floe_get(c.cache, pointer(key), C.size_t(len(key)), &value) != C.FLOE_STATUS_OK {
		return nil, false
	}
	defer C.floe_value_release(value)
	return C.GoBytes(C.floe_value_data(value), C.int(C.floe_value_len(value))), true
}

// Close frees the cache.
func (c *Cache) Close() { C.floe_cache_free(c.cache) }

func main() {
	cache, err := New(1000)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer cache.Close()
	cache.Insert([]byte("key"), []byte("value"))
	value, found := cache.Get([]byte("key"))
	fmt.Printf("%s %t\n", value, found)
}
