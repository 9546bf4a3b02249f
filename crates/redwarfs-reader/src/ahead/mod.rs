//! Read-ahead: decides which blocks to decode before they are requested.
//!
//! This module decides, and `cache/` decodes. Each decision is a list of [`Need`]s. A need is a block, the
//! offset up to which to decode it, and how urgent it is. One rule only lets a server send blocks. There are seven rules:
//!
//! | rule | runs | needs |
//! |---|---|---|
//! | `range.rs`, within a read | when a read spans several blocks | all blocks of the read except the first |
//! | `range.rs`, after a read | after each read, if [`CacheOptions::readahead`] is set | the blocks that hold the next `readahead` bytes of the file |
//! | `streams.rs` | after each read | the next blocks of a file that is read from front to back; from a server so many that the line is never idle |
//! | `plan.rs` | when a block is requested, and there is a plan | the next blocks of the plan |
//! | `sequence.rs` | when a block is requested, and there is no plan | the next block, if the last requested blocks are consecutive |
//! | `neighbours.rs` | when a block is requested that a server has to send, and there is no plan | blocks near it, to be fetched and not decoded, if the last requests stay in one region |
//! | `rest.rs` | when a request has its bytes, if most of the block is decoded or reads jump | the rest of the same block |
//!
//! While there is a plan, only "within a read" and `plan.rs` apply. Preloading is not read-ahead: it
//! starts at once, decodes all blocks or those of one category, and does not depend on reads.
//!
//! [`CacheOptions::readahead`]: crate::CacheOptions::readahead

mod need;
mod neighbours;
mod plan;
mod range;
mod rest;
mod sequence;
mod streams;

use redwarfs_format::metadata::MetadataView;
use redwarfs_format::{BlockNo, InodeNo, Result};
use redwarfs_io::Line;

pub(crate) use need::{Need, Submit, Urgency};
pub(crate) use neighbours::{AheadCounts, Fetch, Neighbours, Stored};
pub(crate) use rest::RestRule;

use crate::options::CacheOptions;
use plan::Plan;
use range::RangeNeeds;
use sequence::Sequence;
use streams::{Streams, ToDo, Window};

/// The rules for reads of files.
#[derive(Debug)]
pub(crate) struct AheadOfReads {
    streams: Streams,
    window: Window,
    /// Bytes to decode after the end of each read.
    readahead: usize,
}

impl AheadOfReads {
    /// `remote` if blocks come from a server, where waiting for one takes as long as several take together. Then blocks have
    /// about `expansion` times as many bytes as are stored of them.
    pub(crate) fn new(
        options: &CacheOptions,
        block_size: u64,
        remote: bool,
        expansion: f64,
    ) -> Self {
        let window = Window::new(block_size, remote, expansion);
        let limit = streams::limit(options, block_size).min(window.most());
        // At most half of the blocks that fit.
        let readahead = options.readahead.min(options.size / 2);
        Self {
            streams: Streams::new(block_size, limit, remote),
            window,
            readahead: usize::try_from(readahead).unwrap_or(usize::MAX),
        }
    }

    /// Submits the probable needs after a read, if there is no plan. `line` is there for an image on a server.
    pub(crate) fn after_read(
        &self,
        view: &MetadataView,
        (inode, offset, len): (InodeNo, u64, usize),
        line: Option<ToServer<'_>>,
        submit: &mut Submit<'_>,
    ) {
        let window = self
            .window
            .bytes(line.as_ref().and_then(|line| line.measured));
        let ToDo { fetch, decode } = self.streams.note(inode, offset, len as u64, window);
        // Requests for those bytes get the errors.
        if let (Some(line), Some(range)) = (line, fetch) {
            let mut blocks = Vec::new();
            let collect = &mut |need: Need| {
                blocks.push(need.block);
                true
            };
            let to = RangeNeeds::of_stream(view, inode, range.clone())
                .and_then(|mut needs| needs.submit_to(collect));
            let to = match (line.announce)(&blocks) {
                None => to,
                Some(refused) => RangeNeeds::of_stream(view, inode, range.clone())
                    .and_then(|mut needs| needs.submit_to(&mut |need| need.block != refused)),
            };
            if let Ok(to) = to {
                self.streams.fetched(inode, range.end, to);
            }
        }
        if let Some(range) = decode {
            let to = RangeNeeds::of_stream(view, inode, range.clone())
                .and_then(|mut needs| needs.submit_to(submit));
            if let Ok(to) = to {
                self.streams.planned(inode, range.end, to);
            }
        }
        if self.readahead > 0 {
            let from = offset.saturating_add(len as u64);
            let _ = RangeNeeds::of_range(view, inode, from, self.readahead)
                .and_then(|mut needs| needs.submit_to(submit));
        }
    }
}

/// The way to the blocks of an image on a server.
pub(crate) struct ToServer<'a> {
    /// The line, if it was measured.
    pub(crate) measured: Option<Line>,
    /// Lets blocks be fetched: all of them at once, so that neighbours are one request. Returns the first one for which there was no
    /// room.
    pub(crate) announce: &'a dyn Fn(&[BlockNo]) -> Option<BlockNo>,
}

/// Submits the blocks of a read, except the first one, which the calling thread decodes itself.
///
/// # Errors
/// The errors of the metadata.
pub(crate) fn within_read(
    view: &MetadataView,
    inode: InodeNo,
    offset: u64,
    len: usize,
    submit: &mut Submit<'_>,
) -> Result<()> {
    RangeNeeds::of_range(view, inode, offset, len)?
        .without_first_block()
        .submit_to(submit)
        .map(drop)
}

/// The blocks of a read.
///
/// # Errors
/// The errors of the metadata.
pub(crate) fn blocks_within(
    view: &MetadataView,
    inode: InodeNo,
    offset: u64,
    len: usize,
) -> Result<Vec<Need>> {
    let mut blocks = Vec::new();
    RangeNeeds::of_range(view, inode, offset, len)?.submit_to(&mut |need| {
        blocks.push(need);
        true
    })?;
    Ok(blocks)
}

/// The rules for requests for blocks.
#[derive(Debug, Default)]
pub(crate) struct AheadOfBlocks {
    plan: Option<Plan>,
    sequence: Sequence,
    /// Number of blocks of a plan that are decoded ahead.
    planned_ahead: usize,
    block_size: u64,
}

impl AheadOfBlocks {
    pub(crate) fn new(options: &CacheOptions, block_size: u64) -> Self {
        // One for each thread, as far as they fit into the cache together with the block that is being
        // read. An unfinished block may take up to three times its size, with payload and decoder.
        let fitting = options.size / block_size.saturating_mul(3).max(1);
        let fitting = usize::try_from(fitting.saturating_sub(1)).unwrap_or(usize::MAX);
        Self {
            plan: None,
            sequence: Sequence::new(options.seq_detector),
            planned_ahead: options.workers.clamp(1, fitting.max(1)),
            block_size,
        }
    }

    /// Sets a new plan: blocks in the order of their first use, each with the end of its needed bytes.
    /// An empty plan means none. Returns whether there is a plan.
    pub(crate) fn plan(&mut self, needs: impl IntoIterator<Item = (BlockNo, u64)>) -> bool {
        self.plan = Plan::new(needs);
        self.plan.is_some()
    }

    /// Notes a request for `block`; `missing` if it is not in the cache. Appends the resulting needs.
    pub(crate) fn after_request(&mut self, block: BlockNo, missing: bool, needs: &mut Vec<Need>) {
        match &mut self.plan {
            Some(plan) => {
                let behind = plan.behind(block, missing, self.planned_ahead);
                needs.extend(behind.iter().map(|&(block, end)| Need::ahead(block, end)));
            }
            None => {
                let next = self.sequence.after(block);
                needs.extend(next.map(|next| Need::ahead(next, self.block_size)));
            }
        }
    }
}
