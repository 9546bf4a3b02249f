//! Similarity digests, for orders that need them: [`Fragments`] -> [`Digests`].
//!
//! Each item of a stream that is ordered by content holds its digest, or the index of a digest that
//! is too large for the item. Small files that are read here stay in memory, too.

use crate::checkpoint::{Record, Scans};
use crate::contents::{Contents, Fragments, Item, KeptPlace};
use crate::context::Context;
use crate::error::Result;
use crate::fingerprint::{DIGESTS, Digest, Fingerprint, Print, Sketches};
use crate::options::Order;
use crate::progress::add;
use crate::read::{FilePart, ReadError, read_range};
use crate::tree::Tree;

/// The digests that are too large for an item, by the numbers in the items.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    pub(crate) nilsimsa: Vec<Digest>,
    pub(crate) sketches: Sketches,
}

/// Computes the digests of the items whose order needs them.
pub(crate) fn digest(
    context: Context<'_>,
    tree: &Tree,
    contents: &mut Contents,
    fragments: &mut Fragments<'_>,
) -> Result<Digests> {
    let mut digests = Digests::default();
    if context.options.hollow {
        return Ok(digests);
    }
    let streams = &fragments.streams;
    let counters = context.counters();
    let limit = context.options.max_similarity_size.unwrap_or(u64::MAX);
    let order = |stream: u32| streams.get(stream as usize).map(|stream| stream.order);
    let fingerprint = |stream: u32| order(stream).and_then(Fingerprint::new);
    let wanted: Vec<bool> = (0..streams.len() as u32)
        .map(|stream| fingerprint(stream).is_some())
        .collect();
    let wanted = |item: &Item| wanted.get(item.stream as usize) == Some(&true);
    let (list, kept) = (&contents.list, &contents.kept);
    let has_key = |item: &Item| {
        let files = &list[item.content as usize].files;
        matches!(order(item.stream), Some(Order::Script(_))) && tree.marks.key(files).is_some()
    };
    let jobs: Vec<u32> = (0u32..)
        .zip(&fragments.items)
        .filter(|(_, item)| wanted(item) && item.size <= limit && !has_key(item))
        .filter(|(_, item)| list[item.content as usize].origin.is_new())
        .map(|(i, _)| i)
        .collect();
    let items = &fragments.items;
    let keeper = kept.keeper();
    let file_of = |job: u32| list[items[job as usize].content as usize].first_file();
    let about = DIGESTS.to_string();
    let scans = Scans::new(context, tree, ("digest", &about), &jobs, file_of);
    let scans = scans.as_ref();
    let print = |buffer: &mut Vec<u8>, job: u32| {
        let item = items[job as usize];
        let content = &list[item.content as usize];
        let file = content.first_file();
        let Some(mut print) = fingerprint(item.stream) else {
            return Ok((None, None, None));
        };
        if item.size == 0 {
            return Ok((Some(print.finish()), None, None));
        }
        if let Some(bytes) = kept.get(file) {
            for range in content.ranges_of(item.stream) {
                let end = usize::try_from(range.end).unwrap_or(bytes.len());
                let range = range.start as usize..end.min(bytes.len());
                let part = bytes.get(range).unwrap_or_default();
                print.update(part);
                add(&counters.similarity_bytes, part.len() as u64);
            }
            add(&counters.similarity_files, 1);
            return Ok((Some(print.finish()), None, None));
        }
        let ranges = || content.ranges_of(item.stream);
        let kind = print.name();
        if let Some(record) = scans.and_then(|scans| scans.find(job, file, kind, ranges()))
            && let Some(known) = Print::from_bytes(&print, &record.result)
        {
            add(&counters.similarity_files, 1);
            add(&counters.similarity_bytes, item.size);
            return Ok((Some(known), None, Some(record)));
        }
        let whole = content.parts.is_none();
        let mut place = None;
        let mut same = true;
        let mut states = Vec::new();
        for range in ranges() {
            let outcome = read_range(context, tree, file, range, buffer, |part| {
                if let FilePart::Data(data) = part {
                    print.update(data);
                    add(&counters.similarity_bytes, data.len() as u64);
                    if whole && data.len() as u64 == content.size {
                        place = keeper.keep(data);
                    }
                }
                Ok(())
            });
            match outcome {
                Ok(outcome) => {
                    same &= !outcome.changed;
                    states.push(outcome.identity);
                }
                // Segmenting fails as well and reports it.
                Err(ReadError::Input(_)) => return Ok((None, None, None)),
                Err(ReadError::Fatal(error)) => return Err(error),
            }
        }
        add(&counters.similarity_files, 1);
        let print = print.finish();
        states.dedup();
        let record = match (scans, states.as_slice()) {
            (Some(scans), [Some(state)]) if same => {
                Some(scans.record(file, state, kind, ranges(), &print.to_bytes()))
            }
            _ => None,
        };
        Ok((Some(print), place.filter(|_| same), record))
    };
    let mut found: Vec<Option<u32>> = Vec::with_capacity(jobs.len());
    let mut places: Vec<(u32, KeptPlace)> = Vec::with_capacity(jobs.len());
    let done = context.scan(&jobs, Vec::new, print, |job, result| {
        let (print, place, record): (_, _, Option<Record>) = result?;
        if let Some(scans) = scans {
            scans.take(job, record);
        }
        found.push(print.map(|print| match print {
            Print::Similarity(digest) => digest,
            Print::Sketch(sketch) => digests.sketches.push(&sketch),
            Print::Nilsimsa(digest) => {
                digests.nilsimsa.push(digest);
                digests.nilsimsa.len() as u32 - 1
            }
        }));
        if let Some(place) = place {
            let content = items[job as usize].content;
            places.push((list[content as usize].first_file(), place));
        }
        Ok(())
    });
    if let Some(scans) = scans {
        scans.finish(done.is_ok());
    }
    done?;
    for (job, found) in jobs.into_iter().zip(found) {
        fragments.items[job as usize].similarity = found;
    }
    for (file, place) in places {
        contents.kept.put(file, place);
    }
    contents.kept.take(keeper);
    Ok(digests)
}
