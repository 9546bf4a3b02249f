// Serve answers HTTP requests with the files of an image, or prints one of them.
//
//	serve [-listen ADDRESS] IMAGE
//	serve -print PATH IMAGE
//
// A port 0 takes any that is free. The first line of the output names the address.
package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"redwarfs"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "the `address` to answer at")
	path := flag.String("print", "", "print the file at this `path` of the image instead")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: serve [-listen ADDRESS | -print PATH] IMAGE")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *path, *listen); err != nil {
		fmt.Fprintf(os.Stderr, "serve: %v\n", err)
		os.Exit(1)
	}
}

func run(name, path, listen string) error {
	image, err := redwarfs.Open(name)
	if err != nil {
		return err
	}
	defer image.Close()
	if path != "" {
		return show(image, path)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/\n", listener.Addr())
	server := &http.Server{Handler: http.FileServer(http.FS(image)), ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}

func show(image fs.FS, path string) error {
	file, err := image.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(os.Stdout, file)
	return err
}
