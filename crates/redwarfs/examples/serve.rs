//! Serves the files of an image over HTTP, without extracting it:
//!
//! ```text
//! cargo run -p redwarfs --example serve -- doc.dwarfs 127.0.0.1:8080
//! curl http://127.0.0.1:8080/bash/README
//! ```

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use redwarfs::Image;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, address] = args.as_slice() else {
        return Err("usage: serve IMAGE ADDRESS:PORT".into());
    };
    serve(&Image::open(image)?, &TcpListener::bind(address)?)?;
    Ok(())
}

/// Answers connections until one cannot be accepted. An image is cheap to clone, and the clones share
/// one cache.
pub(crate) fn serve(image: &Image, listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let image = image.clone();
        thread::spawn(move || {
            // The client is gone if this fails.
            let _ = answer(&image, stream);
        });
    }
}

fn answer(image: &Image, mut stream: TcpStream) -> io::Result<()> {
    let mut request = String::new();
    // Nobody needs a longer first line.
    BufReader::new(&stream).take(8192).read_line(&mut request)?;
    let path = request
        .strip_prefix("GET ")
        .and_then(|rest| rest.split(' ').next());
    let Some(path) = path else {
        return stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
    };
    // A path cannot leave the image, so there is nothing to check.
    match image.file(path) {
        Ok(mut file) => {
            write!(
                stream,
                "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n",
                file.len()
            )?;
            io::copy(&mut file, &mut stream)?;
            Ok(())
        }
        Err(e) => write!(stream, "HTTP/1.0 404 Not Found\r\n\r\n{e}\n"),
    }
}
