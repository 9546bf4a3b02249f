//! Cutting contents into fragments of categories: [`Contents`] -> [`Fragments`].
//!
//! For each content the categorizers look at its first file. If the fragments of a content go to
//! several streams, the content lists them as its parts.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::category::{
    Categorizer, Category, Complaint, Cut, Found, Fragment, HotPaths, Input, Probe, StreamKey,
    Tester, audio, binary, fits,
};
use crate::contents::{Content, Contents, Fragments, Item, Origin};
use crate::context::Context;
use crate::error::Result;
use crate::options::BuildOptions;
use crate::progress::{Level, add};
use crate::settings::StreamSettings;
use crate::tree::Tree;

/// Cuts contents into fragments, and resolves the settings of the streams that these go to.
pub(crate) fn cut<'o>(
    context: Context<'o>,
    tree: &Tree,
    contents: &mut Contents,
) -> Result<Fragments<'o>> {
    let options = context.options;
    let categories = !options.categorizers.is_empty() || tree.marks.has_categories();
    let (keys, items) = if categories && !options.hollow {
        by_category(context, tree, contents)?
    } else {
        (vec![StreamKey::DEFAULT], whole(&contents.list))
    };
    let settings = |key| StreamSettings::new(options, key);
    Ok(Fragments {
        items,
        streams: keys.into_iter().map(settings).collect(),
    })
}

/// Every new content as one item of the stream of everything that is in no category.
fn whole(contents: &[Content]) -> Vec<Item> {
    let item = |(number, content): (u32, &Content)| Item {
        content: number,
        stream: 0,
        size: content.size,
        similarity: None,
    };
    let new = (0u32..).zip(contents).filter(|(_, c)| is_stored(c));
    new.map(item).collect()
}

/// Whether a content takes part in what follows: its data is not in the image that the build continues.
fn is_stored(content: &Content) -> bool {
    !matches!(content.origin, Origin::Base(_))
}

/// The files that a list names. Says once how many of its paths name none.
fn hot_files(context: Context<'_>, tree: &Tree, list: &HotPaths) -> HashSet<u32> {
    let (mut files, mut missing) = (HashSet::new(), Vec::new());
    for path in list.iter() {
        match tree.file_at(path) {
            Some(file) => {
                files.insert(file);
            }
            None => missing.push(path),
        }
    }
    if let [first, more @ ..] = missing.as_slice() {
        let mut what = String::from("is on the hotness list, but is no file of the input");
        if !more.is_empty() {
            let (is, noun) = match more.len() {
                1 => ("is", "path"),
                _ => ("are", "paths"),
            };
            what.push_str(&format!(", and so {is} {} more {noun}", more.len()));
        }
        context.log(Level::Warn, first, &what);
    }
    files
}

/// Asks the categorizers about every content. Returns the streams and their fragments.
fn by_category(
    context: Context<'_>,
    tree: &Tree,
    contents: &mut Contents,
) -> Result<(Vec<StreamKey>, Vec<Item>)> {
    let mut hot = HashSet::new();
    for categorizer in &context.options.categorizers {
        if let Categorizer::Hotness(list) = categorizer {
            hot = hot_files(context, tree, list);
        }
    }
    let (list, kept) = (&contents.list, &contents.kept);
    let jobs: Vec<u32> = (0..list.len() as u32).collect();
    let new_judge = || Judge::new(context.options);
    let judge = |judge: &mut Judge<'_>, job: u32| {
        let content = &list[job as usize];
        let file = content.first_file();
        if content.size == 0 || !content.origin.is_new() {
            return Ok(Verdict::default());
        }
        if let Some(category) = tree.marks.category(&content.files) {
            return Ok(Verdict::whole(category, content.size));
        }
        if context.options.categorizers.is_empty() {
            return Ok(Verdict::default());
        }
        let input = match kept.get(file) {
            Some(bytes) => Input::Memory(bytes),
            None => {
                let listed = tree.files[file as usize];
                let path = tree.file_path(file);
                context.counters().set_current(&path);
                let Ok(content) = context.open(tree, file) else {
                    return Ok(Verdict::default());
                };
                let sparse = listed.sparse();
                Input::File { content, sparse }
            }
        };
        let probe = Probe::new(input, content.size, context.stop);
        let hot = content.files.iter().any(|file| hot.contains(file));
        let verdict = judge.file(&probe, hot);
        add(&context.counters().categorized_bytes, content.size);
        verdict
    };
    let mut found: Vec<Box<[Fragment]>> = Vec::with_capacity(list.len());
    let mut streams = BTreeSet::from([StreamKey::DEFAULT]);
    context.scan(&jobs, new_judge, judge, |job, verdict: Result<Verdict>| {
        let content = &list[job as usize];
        let verdict = verdict?;
        for complaint in verdict.complaints {
            let path = tree.file_path(content.first_file());
            context.log(complaint.level, &path, &complaint.what);
        }
        streams.extend(verdict.fragments.iter().map(|fragment| fragment.key));
        found.push(verdict.fragments.iter().copied().collect());
        Ok(())
    })?;
    drop(jobs);
    let streams: Vec<StreamKey> = streams.into_iter().collect();
    let number = |key: &StreamKey| streams.binary_search(key).unwrap_or(0) as u32;
    let mut items = Vec::new();
    let contents = (0u32..).zip(contents.list.iter_mut().zip(found));
    for (at, (content, fragments)) in contents.filter(|(_, (content, _))| is_stored(content)) {
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        for fragment in &fragments {
            *sums.entry(number(&fragment.key)).or_default() += fragment.size;
        }
        if sums.is_empty() {
            sums.insert(0, content.size);
        }
        if sums.len() > 1 {
            let parts = fragments
                .iter()
                .map(|fragment| (number(&fragment.key), fragment.size));
            content.parts = Some(Box::new(parts.collect()));
        }
        items.extend(sums.into_iter().map(|(stream, size)| Item {
            content: at,
            stream,
            size,
            similarity: None,
        }));
    }
    // Stable: by content within a stream.
    items.sort_by_key(|item| item.stream);
    Ok((streams, items))
}

/// What categorizing a file came to.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// At least one; none means that the file is of no category.
    pub(crate) fragments: Cut,
    /// To be logged.
    pub(crate) complaints: Vec<Complaint>,
}

impl Verdict {
    /// A file that was said to be of a category as a whole.
    pub(crate) fn whole(category: Category, size: u64) -> Self {
        let mut verdict = Self::default();
        verdict.fragments.push(StreamKey::plain(category), size);
        verdict
    }
}

/// The categorizers of a build, applied to one file after the other.
pub(crate) struct Judge<'a> {
    options: &'a BuildOptions,
    sequential: Tester,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(options: &'a BuildOptions) -> Self {
        Self {
            options,
            sequential: Tester::default(),
        }
    }

    /// Cuts a file into fragments. `hot` says whether it is on the list of hot files.
    ///
    /// The first categorizer that looks at places and finds something wins. Categorizers that read the
    /// whole file are tried only if they come before it in the list.
    pub(crate) fn file(&mut self, probe: &Probe<'_>, hot: bool) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        if probe.size() == 0 {
            return Ok(verdict);
        }
        let list = &self.options.categorizers;
        let mut winner = list.len();
        for (at, categorizer) in list.iter().enumerate() {
            let found = match categorizer {
                Categorizer::Fits => fits::categorize(probe),
                Categorizer::PcmAudio => audio::categorize(probe),
                Categorizer::Binary => binary::categorize(probe),
                Categorizer::Hotness(_) => {
                    let whole = || Verdict::whole(Category::Hotness, probe.size());
                    Ok(hot.then(|| whole().fragments))
                }
                Categorizer::Incompressible(_) => continue,
            };
            match found.and_then(|found| self.acceptable(probe, found)) {
                Ok(Some(fragments)) => {
                    verdict.fragments = fragments;
                    winner = at;
                    break;
                }
                Ok(None) => {}
                Err(complaint) => verdict.complaints.push(complaint),
            }
            probe.check_stop()?;
        }
        let before = list.iter().take(winner);
        for categorizer in before.filter(|c| c.is_sequential()) {
            let Categorizer::Incompressible(options) = categorizer else {
                continue;
            };
            match self.sequential.categorize(options, probe) {
                Ok(Some(fragments)) => {
                    verdict.fragments = fragments;
                    break;
                }
                Ok(None) => {}
                Err(complaint) => verdict.complaints.push(complaint),
            }
            probe.check_stop()?;
        }
        Ok(verdict)
    }

    /// The fragments, if they make up the file and the codecs of their categories take them.
    fn acceptable(&self, probe: &Probe<'_>, found: Option<Cut>) -> Found {
        let Some(fragments) = found else {
            return Ok(None);
        };
        let total: u64 = fragments.iter().map(|fragment| fragment.size).sum();
        if total != probe.size() {
            return Err(Complaint::warn("its parts do not make up the file"));
        }
        for fragment in fragments.iter() {
            let codec = self.options.codec_of(fragment.key.category);
            if !codec.accepts(&fragment.key.content()) {
                return Err(Complaint::warn(format!(
                    "compression '{codec}' of category '{}' does not take {}",
                    fragment.key.category,
                    fragment.key.json().unwrap_or_default()
                )));
            }
            if fragment.size % fragment.key.granularity() != 0 {
                return Err(Complaint::warn("its data does not consist of whole units"));
            }
        }
        Ok(Some(fragments))
    }
}
