//! What `--check-recovery` prints.

use redwarfs_recovery::{Damage, Geometry};

use super::args::Args;
use super::output::{Output, output_error};
use super::recovery::described;
use crate::common::Result;
use crate::common::error::display_path;
use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};
use crate::common::recovery::Found;

/// Ranges, relative to the image.
type Ranges<'a> = &'a [(i64, u64)];

/// `open` is what nothing protects.
pub(super) fn print(args: &Args, found: &Found, damage: &Damage, open: Ranges<'_>) -> Result<()> {
    let mut out = Output::new();
    if args.json {
        let mut json = JsonWriter::compact(&mut out);
        write_json(&mut json, found, damage, open).map_err(|e| output_error(&e))?;
        return out.finish();
    }
    if args.quiet {
        return Ok(());
    }
    let place = match &found.sidecar {
        Some(sidecar) => format!(" by {}", display_path(sidecar)),
        None => String::new(),
    };
    for geometry in found.data.geometries() {
        let at = match geometry.start() {
            ..=0 => String::new(),
            start => format!(" at offset {start}"),
        };
        out.line(&format!(
            "recovery: {} protected{at}{place}, {}",
            format_size(geometry.length()),
            described(&geometry)
        ))?;
    }
    let verdict = match (damage.is_none(), damage.lost_groups()) {
        (true, _) if open.is_empty() => format!("OK: the file is as it was{}", found.but_for()),
        (true, _) => "incomplete: what is protected is as it was".to_owned(),
        (false, 0) => format!(
            "damaged: {} of data, {} of parity, {}; {}",
            counted(damage.data_shards(), "shard", "shards"),
            counted(damage.parity_shards(), "shard", "shards"),
            counted(damage.pages(), "page", "pages"),
            found.repair()
        ),
        (false, lost) => format!(
            "damaged: {} of data, {} of parity; {} more damage than can be repaired",
            counted(damage.data_shards(), "shard", "shards"),
            counted(damage.parity_shards(), "shard", "shards"),
            counted(u64::from(lost), "group has", "groups have")
        ),
    };
    let lost = damage.lost_ranges();
    let lost = lost.iter().map(|range| ("lost:     ", "", range));
    let open = open
        .iter()
        .map(|range| ("open:     ", ", without recovery data", range));
    for (label, remark, (start, length)) in lost.chain(open) {
        let length = counted(*length, "byte", "bytes");
        out.line(&format!("{label}{length} {}{remark}", found.place(*start)))?;
    }
    out.line(&verdict)?;
    out.finish()
}

fn write_json(
    json: &mut JsonWriter<&mut Output>,
    found: &Found,
    damage: &Damage,
    open: Ranges<'_>,
) -> std::io::Result<()> {
    let parts: Vec<Geometry> = found.data.geometries().collect();
    let sum = |of: fn(&Geometry) -> u64| parts.iter().map(of).fold(0, u64::saturating_add);
    json.begin_object()?;
    json.key("recovery")?;
    json.begin_object()?;
    json.boolean_at("intact", damage.is_none())?;
    json.boolean_at("repairable", damage.lost_groups() == 0)?;
    if let Some(sidecar) = &found.sidecar {
        json.key("sidecar")?;
        json.string(&sidecar.to_string_lossy())?;
    }
    json.number_at("length", sum(Geometry::length))?;
    json.number_at("left_out", found.data.left_out())?;
    json.number_at("groups", sum(|part| u64::from(part.groups())))?;
    json.number_at("data_shards", sum(Geometry::data_shards))?;
    json.number_at("parity_shards", sum(Geometry::parity_shards))?;
    json.key("parts")?;
    json.begin_array()?;
    for part in &parts {
        json.begin_object()?;
        json.number_at("start", part.start())?;
        json.number_at("length", part.length())?;
        json.number_at("shard_size", part.shard_size() as u64)?;
        json.number_at("groups", part.groups())?;
        json.number_at("data_shards", part.data_shards())?;
        json.number_at("parity_shards", part.parity_shards())?;
        json.end_object()?;
    }
    json.end_array()?;
    json.number_at("damaged_data_shards", damage.data_shards())?;
    json.number_at("damaged_parity_shards", damage.parity_shards())?;
    json.number_at("damaged_pages", damage.pages())?;
    for (name, ranges) in [("lost", &damage.lost_ranges()[..]), ("open", open)] {
        json.key(name)?;
        json.begin_array()?;
        for (start, length) in ranges {
            json.begin_object()?;
            json.number_at("offset", *start)?;
            json.number_at("bytes", *length)?;
            json.end_object()?;
        }
        json.end_array()?;
    }
    json.end_object()?;
    json.end_object()?;
    json.finish()
}
