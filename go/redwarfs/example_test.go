package redwarfs_test

import (
	"fmt"
	"io/fs"
	"net/http"

	"redwarfs"
)

// An image as the contents of a web server.
func Example_server() {
	image, err := redwarfs.Open("photos.dwarfs")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer image.Close()
	http.Handle("/", http.FileServer(http.FS(image)))
	fmt.Println(http.ListenAndServe("127.0.0.1:8080", nil))
}

func ExampleImage() {
	image, err := redwarfs.Open("../../tests/fixtures/compat/compat-v0.9.10.dwarfs")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer image.Close()
	names, err := fs.Glob(image, "*.sh")
	fmt.Println(names, err)
	found, err := fs.Stat(image, "format.sh")
	fmt.Println(found.Size(), found.Mode(), err)
	// Output:
	// [bench.sh format.sh perl-exec.sh] <nil>
	// 94 -rwxr-xr-x <nil>
}
