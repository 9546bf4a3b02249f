//! Images with every two values of every two options together, read by everybody: this library,
//! the programs, the independent reader, and the reference where it is installed.
//!
//! The rows of the matrix are those of `redwarfs_testkit::pairwise`. Each is built from two trees:
//! one with what every reader can show, one with everything. What an image has to show is computed
//! from the tree and the options by a model that shares no code with the writer.
//!
//! `REDWARFS_MATRIX` sets how many rows are done, `all` for all of them; without it the first ones,
//! which have most of the pairs. `REDWARFS_MATRIX_ROW` does a single one and keeps its images.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::matrix_support::independent::{self, Files};
use crate::matrix_support::model::{Input, Model, expected};
use crate::matrix_support::options::{LEFT_OUT, Parameter, parameters, readable_parameters, space};
use crate::matrix_support::{Combination, TestDir, as_extracted, without_header};
use crate::support;
use crate::support::{DWARFSEXTRACT, Mount, reference, run};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::{Fields, Manifest, skip};

/// Rows that are done unless `REDWARFS_MATRIX` says otherwise.
const USUAL_ROWS: usize = 80;

/// Every so many rows the programs read the image, too, and the reference unpacks it.
const SAMPLE: usize = 8;

/// Drivers do not look behind a header by themselves.
const ANYWHERE: [&str; 2] = ["-o", "offset=auto"];

#[test]
fn every_option_is_in_the_matrix_or_left_out_for_a_reason() {
    let parameters = parameters();
    let names: BTreeSet<&str> = (parameters.iter().flat_map(|p| &p.values))
        .flat_map(|value| value.args)
        .map(|arg| {
            let name = arg.split('=').next().unwrap();
            name.strip_prefix("--")
                .unwrap_or_else(|| panic!("{arg}: in full, please"))
        })
        .collect();
    let mut command = redwarfs_tools::mkdwarfs::tool().command;
    // Adds what all programs have.
    command.build();
    let options: BTreeSet<&str> = command
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .collect();
    let left_out: BTreeSet<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    let known: BTreeSet<&str> = names.union(&left_out).copied().collect();
    let news: Vec<_> = options.difference(&known).collect();
    assert!(
        news.is_empty(),
        "neither in the matrix nor left out: {news:?}"
    );
    let gone: Vec<_> = known.difference(&options).collect();
    assert!(gone.is_empty(), "no options of mkdwarfs: {gone:?}");
    let twice: Vec<_> = names.intersection(&left_out).collect();
    assert!(twice.is_empty(), "in the matrix and left out: {twice:?}");
}

/// What came of the rows of a matrix.
#[derive(Default)]
struct Tally {
    images: usize,
    reference: usize,
    independent: Files,
    problems: Vec<String>,
}

/// A matrix and its input.
struct Matrix<'a> {
    name: &'static str,
    parameters: &'a [Parameter],
    place: &'a TestDir,
    input: &'a Input,
    /// Whether the independent reader reads all images.
    plain: bool,
    reference: Option<PathBuf>,
    tally: Mutex<Tally>,
}

#[test]
fn all_readers_agree_on_all_combinations() {
    let place = TestDir::new();
    let reference = reference();
    let mut problems = Vec::new();
    for (plain, parameters) in [(true, readable_parameters()), (false, parameters())] {
        let matrix = Matrix {
            name: if plain { "plain" } else { "full" },
            parameters: &parameters,
            place: &place,
            input: if plain { &place.plain } else { &place.full },
            plain,
            reference: reference.clone(),
            tally: Mutex::default(),
        };
        problems.extend(matrix.run());
    }
    let text = problems.join("\n\n");
    assert!(problems.is_empty(), "{} images:\n{text}", problems.len());
}

fn variable(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(if text == "all" {
        usize::MAX
    } else {
        text.parse().unwrap()
    })
}

impl Matrix<'_> {
    /// Does the rows that are asked for; returns what is wrong.
    fn run(self) -> Vec<String> {
        let space = space(self.parameters);
        let mut rows: Vec<(usize, Vec<usize>)> = space.rows().into_iter().enumerate().collect();
        let all = rows.len();
        rows.truncate(variable("REDWARFS_MATRIX").unwrap_or(USUAL_ROWS));
        let single = variable("REDWARFS_MATRIX_ROW");
        rows.retain(|(number, _)| single.is_none_or(|single| *number == single));
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let Some((number, row)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.row(*number, row, single.is_some());
                    }
                });
            }
        });
        let tally = self.tally.into_inner().unwrap();
        let done: Vec<Vec<usize>> = rows.into_iter().map(|(_, row)| row).collect();
        let by = if self.plain { tally.images } else { 0 };
        let Files { read, unread } = tally.independent;
        println!(
            "{} tree: {} of {all} combinations with {} of {} pairs of values of {} parameters; read \
             by the reference: {}, by the independent reader: {by} ({read} files, and {unread} in \
             blocks of codecs that it does not have)",
            self.name,
            done.len(),
            space.covered(&done),
            space.pairs().count(),
            self.parameters.len(),
            tally.reference,
        );
        assert_eq!(tally.images, done.len());
        assert!(
            !tally.problems.is_empty() || read >= 10 * by,
            "files have been read"
        );
        tally.problems
    }

    fn row(&self, number: usize, row: &[usize], keep: bool) {
        let combination = Combination::new(self.parameters, row);
        let work = tempfile::tempdir().unwrap();
        let done = self.image(number, &combination, work.path());
        if keep {
            println!("{}", work.keep().display());
        }
        let mut tally = self.tally.lock().unwrap();
        tally.images += 1;
        if let Err(problem) = done {
            let lines: Vec<&str> = problem.lines().take(12).collect();
            let (name, shown, lines) = (self.name, combination.shown(), lines.join("\n"));
            let text = format!("{name} tree, row {number}: {shown}\n{lines}");
            tally.problems.push(text);
        }
    }

    fn image(
        &self,
        number: usize,
        combination: &Combination<'_>,
        work: &Path,
    ) -> Result<(), String> {
        let path = work.join("image");
        let model = combination.model();
        let (want, lost) = expected(self.input, &model).map_err(|e| format!("the model: {e}"))?;
        combination.build(self.place, self.input, &path, lost == 0)?;
        let ours = library(&path)?;
        let fields = Fields {
            ino: false,
            dir_nlink: false,
            ..Fields::ALL
        };
        same(&with_sizes(&want, &ours), &ours, fields, "library")?;
        if self.plain {
            let image = without_header(&path, &model)?;
            let files = independent::check(&image, &want, &model)
                .map_err(|e| format!("independent reader: {e}"))?;
            let mut tally = self.tally.lock().unwrap();
            tally.independent.read += files.read;
            tally.independent.unread += files.unread;
        }
        let sample = number.is_multiple_of(SAMPLE);
        if sample {
            programs(&path, work, &ours)?;
        }
        if let Some(reference) = &self.reference {
            by_reference(reference, &path, work, &ours, sample)?;
            self.tally.lock().unwrap().reference += 1;
        }
        Ok(())
    }
}

/// Sizes on the disk of what has no content are the image's own affair.
fn with_sizes(want: &Manifest, ours: &Manifest) -> Manifest {
    let mut want = want.clone();
    for (path, entry) in &mut want.0 {
        let regular = entry.mode & 0o170_000 == 0o100_000;
        if let Some(own) = ours.0.get(path).filter(|_| !regular) {
            entry.blocks = own.blocks;
        }
    }
    want
}

fn same(want: &Manifest, got: &Manifest, fields: Fields, what: &str) -> Result<(), String> {
    let list = want.differences(got, fields);
    match list.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{what}: {} differences:\n{}",
            list.len(),
            list.join("\n")
        )),
    }
}

fn library(path: &Path) -> Result<Manifest, String> {
    let mut options = OpenOptions::default();
    options.check = true;
    let image = Image::open(path, &options).map_err(|e| format!("library: {e}"))?;
    Manifest::from_image(&image, true).map_err(|e| format!("library: {e}"))
}

fn succeeds(program: impl AsRef<std::ffi::OsStr>, args: &[&Path]) -> Result<(), String> {
    let done = run(&program, args);
    match done.status.success() && done.stderr.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{}: {}: {}",
            program.as_ref().display(),
            done.status,
            String::from_utf8_lossy(&done.stderr)
        )),
    }
}

/// Unpacks an image and compares what is there then.
fn unpacked(program: &Path, image: &Path, work: &Path, want: &Manifest) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        skip(
            "unpacking images of the matrix",
            "owners and devices need root",
        );
        return Ok(());
    }
    let out = work.join("out");
    fs::create_dir(&out).unwrap();
    succeeds(program, &["-i".as_ref(), image, "-o".as_ref(), &out])?;
    let mut got = Manifest::from_directory(&out, true).map_err(|e| e.to_string())?;
    fs::remove_dir_all(&out).unwrap();
    let mut want = as_extracted(want);
    if program != Path::new(DWARFSEXTRACT) {
        // The reference leaves the root as it finds it, and makes files of sockets.
        let socket = |mode: u32| mode & 0o170_000 == 0o140_000;
        let left = (want.0.iter()).filter(|(path, entry)| *path == b"." || socket(entry.mode));
        let left: Vec<Vec<u8>> = left.map(|(path, _)| path.clone()).collect();
        for path in left {
            want.0.remove(&path);
            got.0.remove(&path);
        }
    }
    same(
        &want,
        &got,
        Fields::EXTRACTED,
        &program.display().to_string(),
    )
}

/// Our own driver and extractor.
fn programs(image: &Path, work: &Path, want: &Manifest) -> Result<(), String> {
    unpacked(Path::new(DWARFSEXTRACT), image, work, want)?;
    let point = work.join("mnt");
    let Some(_mount) = Mount::new(image, &point, &ANYWHERE) else {
        return Ok(());
    };
    let got = Manifest::from_directory(&point, true).map_err(|e| e.to_string())?;
    same(want, &got, Fields::ALL, "mount")
}

/// The driver of the reference ends with a segmentation fault when a read takes more chunks than a
/// system call takes pieces.
const MOST_CHUNKS: u32 = 1000;

/// Chunks of the file that has most of them.
fn most_chunks(image: &Path) -> Result<u32, String> {
    let image = Image::open(image, &OpenOptions::default()).map_err(|e| e.to_string())?;
    let view = image.metadata();
    let mut files = 1..view.chunk_table_len();
    let first = |k| view.first_chunk(k).map_err(|e| e.to_string());
    files.try_fold(0, |most: u32, k| Ok(most.max(first(k)? - first(k - 1)?)))
}

/// The reference checks, mounts and, if `sample`, unpacks the image. Its mount shows every field
/// as this library does. What it cannot read through a mount it unpacks.
fn by_reference(
    reference: &Path,
    image: &Path,
    work: &Path,
    ours: &Manifest,
    sample: bool,
) -> Result<(), String> {
    let check = [
        "-i".as_ref(),
        image,
        "--check-integrity".as_ref(),
        "-q".as_ref(),
    ];
    succeeds(reference.join("dwarfsck"), &check)?;
    let point = work.join("theirs");
    let mount = Mount::with(reference.join("dwarfs"), image, &point, &ANYWHERE);
    let content = most_chunks(image)? < MOST_CHUNKS;
    if mount.is_some() {
        let got = Manifest::from_directory(&point, content).map_err(|e| e.to_string())?;
        let fields = Fields {
            content,
            ..Fields::ALL
        };
        same(ours, &got, fields, "mount by the reference")?;
    }
    if sample || mount.is_none() || !content {
        unpacked(&reference.join("dwarfsextract"), image, work, ours)?;
    }
    Ok(())
}

/// One read through a mount may take more chunks than a system call takes pieces, which is 1024;
/// the driver of the reference ends there.
#[test]
fn one_read_takes_thousands_of_chunks() {
    let work = tempfile::tempdir().unwrap();
    let (source, image) = (work.path().join("source"), work.path().join("image"));
    fs::create_dir(&source).unwrap();
    let text = b"twelve bytes".repeat(20_000);
    fs::write(source.join("text"), &text).unwrap();
    support::build(&source, &image, &["-l1", "-W5", "-w5", "-S10"]);
    let chunks = most_chunks(&image).unwrap();
    assert!(
        chunks > 1024 * 240_000 / (128 << 10),
        "only {chunks} chunks"
    );
    let Some(_mount) = Mount::new(&image, &work.path().join("mnt"), &[]) else {
        return;
    };
    assert_eq!(fs::read(work.path().join("mnt/text")).unwrap(), text);
}

/// What the independent reader is kept from reading is what it cannot read, and nothing else.
#[test]
fn obstacles_of_the_independent_reader() {
    let place = TestDir::new();
    let work = tempfile::tempdir().unwrap();
    let all = parameters();
    let usual = vec![0; all.len()];
    let mut obstacles = BTreeSet::new();
    let mut count = 0;
    for (p, parameter) in all.iter().enumerate() {
        for v in 0..parameter.values.len() {
            let mut row = usual.clone();
            row[p] = v;
            let combination = Combination::new(&all, &row);
            let obstacle = independent::obstacle(&combination.model());
            if obstacle.is_none() && (v > 0 || p > 0) {
                continue;
            }
            let path = work.path().join(format!("{p}-{v}"));
            // Equal files, and no media.
            let mut command = vec![
                "-i",
                place.plain.root.to_str().unwrap(),
                "-o",
                path.to_str().unwrap(),
            ];
            command.extend(["-l1", "--filter=- **/media/", "--log-level=error"]);
            command.extend(
                parameter.values[v]
                    .args
                    .iter()
                    .filter(|arg| !arg.starts_with("--compress-level")),
            );
            support::must(support::MKDWARFS, command);
            let image = fs::read(&path).unwrap();
            assert_eq!(
                independent::manages(&image),
                obstacle.is_none(),
                "{}",
                combination.shown()
            );
            obstacles.extend(obstacle);
            count += 1;
        }
    }
    assert_eq!((obstacles.len(), count), (3, 7));
}

/// The model notices what it has to notice: a combination without an option is not one with it.
#[test]
fn the_model_tells_options_apart() {
    let place = TestDir::new();
    let shown = |change: fn(&mut Model)| {
        let mut model = Model::default();
        change(&mut model);
        expected(&place.full, &model).unwrap().0
    };
    let usual = shown(|_| {});
    assert!(usual.differences(&shown(|_| {}), Fields::ALL).is_empty());
    for parameter in parameters() {
        for value in parameter.values {
            let changed = {
                let mut model = Model::default();
                (value.effect)(&mut model);
                let readers = model.header || model.null || model.brotli_metadata;
                (!readers && !model.packed_shared_files)
                    .then(|| expected(&place.full, &model).unwrap().0)
            };
            let Some(changed) = changed else { continue };
            let args = value.args.join(" ");
            let visible =
                VISIBLE.iter().any(|name| args.starts_with(name)) || value.epoch.is_some();
            let differs = !usual.differences(&changed, Fields::ALL).is_empty();
            assert_eq!(differs, visible, "{}: {args}", parameter.name);
        }
    }
}

/// Options that change what an image of the tree shows.
const VISIBLE: [&str; 21] = [
    "--with-devices",
    "--with-specials",
    "--symlinks=follow",
    "--symlinks=drop",
    "--hard-links=dissolve",
    "--pseudo-file",
    "--no-sparse-files",
    "--hollow",
    "--input-list",
    "--filter",
    "--script",
    "--remove-empty-dirs",
    "--exclude-caches",
    "--exclude-if-present",
    "--set-owner",
    "--set-group",
    "--owner-map",
    "--chmod",
    "--set-time",
    "--keep-all-times",
    "--time-resolution",
];
