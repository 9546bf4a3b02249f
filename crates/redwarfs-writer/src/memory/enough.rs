//! Which memory limit is enough for an input that is not completely known.

use super::{FEATURES, LISTED, Load, MARGIN, SMALL_FILES, StreamLoad, fixed, most, needed};
use crate::category::{Category, StreamKey};
use crate::options::BuildOptions;
use crate::settings::StreamSettings;

/// What is known of the input when a limit is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// A part of its entries, or nothing.
    Part,
    /// All entries, and the sizes of files.
    Listed,
    /// All that counts.
    All,
}

/// If not all entries are known, at least so many are assumed.
const ENTRIES: u64 = 1_000_000;
/// Memory of a name while it is assumed.
const NAME: u64 = 64;
/// The key that a hook may give to an entry.
const KEY: u64 = 24;
/// Bytes that are assumed if not all entries are known: more than any block or index holds.
const BYTES: u64 = 1 << 50;
/// The entries of an archive stay in memory up to this part of a limit.
const ARCHIVED: u64 = 16;

/// The limit of which `needed` bytes can be used for a file system with so many bytes in files.
pub(super) fn limit_for(needed: u64, listed: u64) -> u64 {
    // Small files and the margin are parts of the limit themselves.
    let all = needed.saturating_add(SMALL_FILES.min(listed));
    let all = all.saturating_add(all / (MARGIN - 1));
    let part = u128::from(needed) * 40 / 31;
    let part = u64::try_from(part).unwrap_or(u64::MAX);
    all.min(part).saturating_add(MARGIN)
}

/// A limit that is enough, and for how many entries if not all are known. `least` is what is needed at least.
pub(super) fn enough(
    options: &BuildOptions,
    load: Load,
    least: u64,
    known: Known,
) -> (u64, Option<u64>) {
    let (entries, listed) = match known {
        Known::All => return (limit_for(least, load.listed), None),
        Known::Listed => (load.entries, load.listed),
        Known::Part => (load.entries.saturating_mul(2).max(ENTRIES), BYTES),
    };
    let more = entries.saturating_sub(load.entries);
    let keys = if options.hook.is_some() { KEY } else { 0 };
    let load = Load {
        entries,
        strings: load.strings.saturating_add(more.saturating_mul(NAME)),
        text: load.text.saturating_add(more.saturating_mul(NAME)),
        beside: (load.beside).saturating_add(entries.saturating_mul(keys)),
        spilled: false,
        listed,
        bytes: listed,
        ..load
    };
    // What is needed is linear in these numbers, so one of the extremes is the most.
    let (least_directories, most_directories) = match known {
        Known::Part => (0, entries),
        _ => (load.directories, load.directories),
    };
    let needs = [least_directories, most_directories].map(|directories| {
        let contents = entries.saturating_sub(directories);
        let (bytes, each) = FEATURES;
        let load = Load {
            directories,
            contents,
            features: contents.saturating_mul(each).min(listed / bytes),
            ..load
        };
        most_of_streams(options, load)
    });
    let mut most = needs.into_iter().fold(least, u64::max);
    if known == Known::Part {
        // All of them may be in one directory.
        let none = Load {
            beside: load.beside,
            listed,
            ..Load::default()
        };
        let all = entries.saturating_mul(LISTED);
        most = most.max(most_of_streams(options, none).saturating_add(all));
        most = most.saturating_add(most / (ARCHIVED - 1));
    }
    let limit = limit_for(most, listed);
    (limit, (known == Known::Part).then_some(entries))
}

fn stream<'a>(settings: &'a StreamSettings<'a>, items: u64, load: Load) -> StreamLoad<'a> {
    StreamLoad {
        settings,
        items,
        bytes: load.listed,
    }
}

/// What is needed at most, whatever stream the contents go to.
fn most_of_streams(options: &BuildOptions, load: Load) -> u64 {
    let mut categories = vec![Category::Default, Category::of_xattrs()];
    if !options.categorizers.is_empty() || options.hook.is_some() {
        categories.extend(Category::ALL);
        categories.extend(options.categories.keys());
    }
    let settings: Vec<_> = categories
        .into_iter()
        .map(|category| StreamSettings::new(options, StreamKey::plain(category)))
        .collect();
    let empty: Vec<_> = settings
        .iter()
        .map(|settings| stream(settings, 0, load))
        .collect();
    // Each content is ordered once.
    let orders = settings.iter().map(|settings| {
        let one = [stream(settings, load.contents, load)];
        needed(options, load, &one)
    });
    let ordered = orders.fold(0, u64::max);
    let job = most(&empty, |stream| stream.job(options));
    let built = fixed(options, load, &empty).saturating_add(job);
    ordered.saturating_add(job).max(built)
}
