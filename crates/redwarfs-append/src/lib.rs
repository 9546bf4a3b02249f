//! New generations of an image, behind the old ones, and the table of all generations (format chapter 12).
//!
//! | module | what it does |
//! |---|---|
//! | `base` | shows an image to a build that continues it |
//! | `matching` | searches the indexes of anchors of an image |
//! | `moved` | finds old versions of files that have another path |
//! | `older` | finds contents of older generations for that |
//! | `place` | the file of an image that is changed in place |
//! | `table` | names, pins, deletes generations, and goes back to one |
//! | `joined` | an image and its delta files as one image |
//! | `layered` | an image with the changes of a writable layer, as a source |
//! | `keep` | which generations rules keep |
//! | `compact` | a copy without deleted generations and their data |
//! | `punch` | gives the space of deleted generations back in place |
//! | `used` | which blocks a generation uses |
//! | `diff` | what differs between two trees |
//!
//! A build with [`Builder::append`](redwarfs_writer::Builder::append) takes a [`Base`], and writes what
//! follows the image. Where that goes is the choice of the caller:
//!
//! * [`InPlace::writer`]: behind the image, in its file. At every moment the file is a valid image.
//! * Any other output: the bytes are a *delta file*, or come behind a copy of the image.

mod base;
mod compact;
mod diff;
mod error;
mod joined;
mod keep;
mod layered;
mod matching;
mod moved;
mod older;
mod place;
mod punch;
mod table;
mod used;

pub use base::{Base, BaseOptions, Trust};
pub use compact::{Archiving, Compacted, Compaction};
pub use diff::{Change, ChangeKind, diff};
pub use error::{Error, Result};
pub use joined::join;
pub use keep::KeepRules;
pub use layered::Layered;
pub use place::InPlace;
pub use punch::{Punched, Punching, punch};
pub use table::{RollBack, TableChange, change, changeable, roll_back};
