//! Checks that files lie within their blocks, that histories can be parsed, and that the metadata is
//! consistent.

use std::collections::HashMap;

use redwarfs_format::Error;
use redwarfs_format::history::History;
use redwarfs_format::metadata::{Extent, MetadataView};
use redwarfs_format::section::SectionType;
use redwarfs_io::Source;

use super::finding::{Finding, FindingKind, SectionPlace};
use super::hashes::SectionOutcome;
use super::payload_size::{PayloadSize, decode_small};
use super::sections::{ListedSection, SectionList};
use crate::image::Image;

/// Blocks that are shorter than their files need. `sizes` has an entry for each block.
///
/// Takes 8 bytes for each block.
pub(super) fn oversized(
    view: &MetadataView,
    list: &SectionList,
    sizes: &[Option<PayloadSize>],
) -> Vec<Finding> {
    let blocks: Vec<&ListedSection> = list.blocks().collect();
    let mut used = vec![0_u64; blocks.len()];
    // Contents that overlap in the table of chunks would take forever. The check of the metadata
    // finds them.
    let mut left = u64::from(view.counts().chunks);
    for content in 0..view.counts().contents {
        let Ok(extents) = view.content_extents(content) else {
            continue;
        };
        let Some(rest) = left.checked_sub(extents.len() as u64) else {
            break;
        };
        left = rest;
        for extent in extents.flatten() {
            if let Extent::Data {
                block,
                offset,
                size,
            } = extent
                && let Some(most) = used.get_mut(block.index())
            {
                *most = (*most).max(u64::from(offset).saturating_add(u64::from(size)));
            }
        }
    }
    let mut findings = Vec::new();
    for ((listed, used), size) in blocks.into_iter().zip(used).zip(sizes) {
        if let Some(raw) = size.and_then(|size| size.raw)
            && used > raw
            && !listed.lost
        {
            let place = listed.place();
            let what = format!("files use {used} bytes of {place} which has {raw}");
            findings.push(Finding::at(FindingKind::Size, what, place));
        }
    }
    findings
}

/// History sections that cannot be decoded, but have a correct checksum.
pub(super) fn histories(
    source: &dyn Source,
    list: &SectionList,
    outcomes: &[SectionOutcome],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (listed, outcome) in list.sections.iter().zip(outcomes) {
        if listed.section.ty != SectionType::HISTORY || !outcome.is_ok() {
            continue;
        }
        let parsed =
            decode_small(source, list.offset, &listed.section).and_then(|raw| History::parse(&raw));
        if let Err(e) = parsed {
            let place = listed.place();
            let what = format!("cannot decode {place}");
            findings.push(Finding::at(FindingKind::Decode, what, place).because(e));
        }
    }
    findings
}

/// Hints with a correct checksum that have no such contents, or name blocks that do not exist. Those of a later version and
/// of another generation are not wrong.
pub(super) fn hints(
    image: &Image,
    list: &SectionList,
    outcomes: &[SectionOutcome],
) -> Vec<Finding> {
    let count = image.container().block_count();
    let mut findings = Vec::new();
    // A wrong checksum is a finding already.
    let sections = list.sections.iter().zip(outcomes);
    let right: HashMap<u64, SectionPlace> = sections
        .filter(|(listed, outcome)| listed.section.ty == SectionType::HINTS && outcome.is_ok())
        .map(|(listed, _)| (listed.section.header_offset, listed.place()))
        .collect();
    for stored in image.stored_hints() {
        let Some(&place) = right.get(&stored.section.header_offset) else {
            continue;
        };
        match stored.table {
            Err(e @ (Error::Corrupt { .. } | Error::Limit(_))) => {
                let what = format!("cannot decode {place}");
                findings.push(Finding::at(FindingKind::Decode, what, place).because(e));
            }
            Err(_) => {}
            Ok(table) => {
                let hinted = table.blocks.iter();
                let missing = hinted.filter(|hinted| hinted.block.0 >= count).count();
                if missing > 0 {
                    let what = format!("{place} names {missing} blocks that do not exist");
                    findings.push(Finding::at(FindingKind::Decode, what, place));
                }
            }
        }
    }
    findings
}

/// The check of the metadata.
pub(super) fn metadata(image: &Image, list: &SectionList) -> Option<Finding> {
    let blocks = image.container().block_count();
    let views = image.archive().into_iter().chain([image.metadata()]);
    let e = views
        .filter_map(|view| view.check(blocks, None).err())
        .next()?;
    let what = "the metadata is inconsistent";
    Some(Finding {
        section: list.place_of(SectionType::METADATA_V2),
        ..Finding::new(FindingKind::Metadata, what).because(e)
    })
}
