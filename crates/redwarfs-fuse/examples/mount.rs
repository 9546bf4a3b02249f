//! Mounts an image, waits for the end of its input, unmounts and says what happened:
//! `mount IMAGE DIRECTORY [push=no] [readers=N] [cachesize=BYTES]`. For experiments with the driver.

use std::io::Read;
use std::path::PathBuf;

use redwarfs_fuse::{MountOptions, mount};
use redwarfs_reader::{Image, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(image), Some(directory)) = (args.next(), args.next()) else {
        return Err("usage: mount IMAGE DIRECTORY [push=no] [readers=N] [cachesize=BYTES]".into());
    };
    let mut options = MountOptions::default();
    let mut open = OpenOptions::default();
    for option in args {
        match option.to_str().and_then(|option| option.split_once('=')) {
            Some(("push", answer)) => options.push = answer != "no",
            Some(("readers", count)) => options.readers = count.parse()?,
            Some(("cachesize", bytes)) => open.cache.size = bytes.parse()?,
            _ => return Err("unknown option".into()),
        }
    }
    let image = Image::open(PathBuf::from(image), &open)?;
    let mounted = mount(image, &PathBuf::from(directory), &options)?;
    let observer = mounted.observer();
    let unmounter = mounted.unmounter();
    println!("mounted");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    unmounter.unmount()?;
    mounted.wait()?;
    println!("{}", observer.statistics());
    Ok(())
}
