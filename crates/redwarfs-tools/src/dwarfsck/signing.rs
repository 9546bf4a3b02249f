//! Digests and signatures: `--add-digests`, `--export-digests`, `--sign`, `--add-signature`, `--check-digests` and
//! `--verify-signature`.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use redwarfs_format::section::{Container, Snapshot};
use redwarfs_io::{Overwrite, Source};
use redwarfs_reader::{
    Image, StoredDigests, VerifySignature, sections_of_snapshot, stored_digests, stored_signatures,
};
use redwarfs_signature::{
    DigestAlgorithm, DigestOptions, Digests, Error, LockedKey, SecretKey, WholeImage, add_digests,
    add_signature, make_digests, signature_kind, verify_all,
};
use serde_json::json;

use super::args::Args;
use super::meter::with_bytes;
use super::output::{Output, output_error};
use super::recovery::{image_offset, lock, refuse_damage, say, warn_if_open};
use super::snapshots::{last_signed, open};
use crate::common::env::IoLayer;
use crate::common::error::{EXIT_FAILURE, EXIT_OK, io_cause};
use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};
use crate::common::os::stop_flag;
use crate::common::output::create_derived;
use crate::common::verify::{public_keys, utc};
use crate::common::{Logger, Result, ToolError};

/// Longest signature that is read from a file (1 MiB).
const LONGEST: u64 = 1 << 20;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Task<'a> {
    AddDigests(DigestAlgorithm),
    Export(&'a Path),
    /// With the key in this file.
    Sign(&'a Path),
    /// With the signature in this file.
    AddSignature(&'a Path),
    /// Against the digests, and the signature if there must be one by this key.
    Verify(Option<&'a str>),
}

impl<'a> Task<'a> {
    /// The task of a command line, which has only one.
    pub(super) fn of(args: &'a Args) -> Option<Self> {
        let tasks = [
            args.add_digests.map(Self::AddDigests),
            args.export_digests.as_deref().map(Self::Export),
            args.sign.as_deref().map(Self::Sign),
            args.add_signature.as_deref().map(Self::AddSignature),
            args.check_digests.then_some(Self::Verify(None)),
            args.verify_signature
                .as_deref()
                .map(|key| Self::Verify(Some(key))),
        ];
        tasks.into_iter().flatten().next()
    }
}

/// Understands the name of an algorithm of digests.
pub(super) fn algorithm(text: &str) -> Result<DigestAlgorithm, String> {
    match text {
        "blake3" => Ok(DigestAlgorithm::Blake3),
        "sha512-256" => Ok(DigestAlgorithm::Sha512_256),
        _ => Err(format!(
            "no such algorithm: {text} (one of blake3, sha512-256)"
        )),
    }
}

/// What all tasks need.
struct Work<'a> {
    args: &'a Args,
    input: &'a Path,
    workers: usize,
    logger: &'a Logger,
    stop: Arc<AtomicBool>,
}

pub(super) fn run(
    args: &Args,
    task: Task<'_>,
    input: &Path,
    workers: usize,
    logger: &Logger,
) -> Result<u8> {
    let stop = stop_flag().map_err(|e| ToolError::new("cannot handle signals").io(&e))?;
    let for_newest = match task {
        Task::AddDigests(_) => Some("--add-digests"),
        Task::Sign(_) => Some("--sign"),
        Task::AddSignature(_) => Some("--add-signature"),
        Task::Export(_) | Task::Verify(_) => None,
    };
    if let Some(option) = for_newest
        && args.snapshots.snapshot.is_some()
    {
        return Err(
            ToolError::new(format!("--snapshot does not go with {option}"))
                .hint("that is for the newest snapshot"),
        );
    }
    let work = Work {
        args,
        input,
        workers,
        logger,
        stop,
    };
    match task {
        Task::AddDigests(algorithm) => work.add_digests(algorithm),
        Task::Export(path) => work.export(path),
        Task::Sign(key) => work.sign(key),
        Task::AddSignature(path) => work.add_signature(path),
        Task::Verify(key) => work.verify(key),
    }
}

/// The time to state: now, or that of a reproducible build.
fn time() -> Result<i64> {
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs().cast_signed())
    };
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(now());
    };
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        ToolError::new("invalid SOURCE_DATE_EPOCH")
            .path(Path::new(&text))
            .cause("is no number of seconds")
    })
}

impl Work<'_> {
    fn failed(&self, what: &str, error: Error) -> ToolError {
        let failure = ToolError::new(what).path(self.input);
        match error {
            Error::Io(e) => failure.io(&e),
            Error::NoDigests => failure
                .cause(Error::NoDigests)
                .hint("--add-digests or --sign makes them"),
            other => failure.cause(other),
        }
    }

    fn container(&self, source: &dyn Source, offset: u64) -> Result<Container> {
        let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
        let len = source
            .len()
            .map_err(|e| self.failed("cannot read", e.into()))?;
        Container::open(&read, len, offset, self.args.image_size)
            .map_err(|e| self.failed("cannot open image", e.into()))
    }

    fn stored(&self, source: &dyn Source, container: &Container) -> Result<Option<StoredDigests>> {
        stored_digests(source, container)
            .map_err(|e| self.failed("cannot read the digests", e.into()))
    }

    fn make(
        &self,
        source: &dyn Source,
        container: &Container,
        options: DigestOptions,
    ) -> Result<Digests> {
        let (made, took) = with_bytes(self.args, "hashing", container.size, self.logger, |done| {
            make_digests(source, container, options, done, &self.stop)
        });
        self.logger.verbose(format_args!("made digests, {took}"));
        made.map_err(|e| self.failed("cannot make digests", e))
    }

    /// Adds digests of an image that is not damaged.
    fn add_digests(&self, algorithm: DigestAlgorithm) -> Result<u8> {
        let image = self.checked()?;
        self.add_new_digests(image.container().offset, algorithm)?;
        self.warn_if_open(&image, "the digests");
        Ok(EXIT_OK)
    }

    /// The image, which must not be damaged.
    fn checked(&self) -> Result<Image> {
        let (image, _) = image_offset(self.args, self.input)?;
        if !self.args.no_check {
            refuse_damage(self.args, self.input, &image, self.workers, self.logger)?;
        }
        Ok(image)
    }

    /// Warns that the recovery data of an image does not protect what was added.
    fn warn_if_open(&self, image: &Image, what: &str) {
        warn_if_open(image, what, self.input, self.logger);
    }

    fn add_new_digests(&self, offset: u64, algorithm: DigestAlgorithm) -> Result<()> {
        let what = "cannot add digests";
        let file = lock(self.input)?;
        let container = self.container(&file, offset)?;
        let options = DigestOptions {
            algorithm,
            time: time()?,
        };
        let digests = self.make(&file, &container, options)?;
        let added = add_digests(file, offset, &digests).map_err(|e| self.failed(what, e))?;
        say(
            self.args,
            &format!(
                "added:    {}, {} of {}",
                described(&digests),
                format_size(added.bytes),
                utc(digests.time)
            ),
            &json!({"added": {
                "algorithm": digests.algorithm.name(),
                "bytes": added.bytes,
                "sections": digests.entries.len(),
                "time": digests.time,
            }}),
        )
    }

    fn export(&self, path: &Path) -> Result<u8> {
        let (image, _) = image_offset(self.args, self.input)?;
        let stored = self
            .stored(image.source().as_ref(), image.container())?
            .ok_or_else(|| self.failed("cannot export digests", Error::NoDigests))?;
        let failed = |e: &io::Error| ToolError::new("cannot write").path(path).io(e);
        if path == Path::new("-") {
            let mut out = io::stdout().lock();
            out.write_all(&stored.message)
                .and_then(|()| out.flush())
                .map_err(|e| failed(&e))?;
            return Ok(EXIT_OK);
        }
        let mut file = create_derived(path, Overwrite::Yes, &[self.input], self.logger)
            .map_err(|e| ToolError::new("cannot write").cause(io_cause(&e)))?;
        file.write_all(&stored.message).map_err(|e| failed(&e))?;
        file.commit().map_err(|e| failed(&e))?;
        Ok(EXIT_OK)
    }

    fn sign(&self, path: &Path) -> Result<u8> {
        let what = "cannot sign";
        let image = self.checked()?;
        let offset = image.container().offset;
        let key = self.unlocked(path)?;
        let file = lock(self.input)?;
        let container = self.container(&file, offset)?;
        // What was stored before may be of anybody: only what is read now is signed.
        let usable = match self.stored(&file, &container)? {
            None => false,
            Some(stored) => {
                let options = DigestOptions {
                    algorithm: stored.digests.algorithm,
                    time: stored.digests.time,
                };
                let same = self.make(&file, &container, options)? == stored.digests;
                if !same {
                    self.logger
                        .warn("the digests of the image are not those of its contents: new ones are added");
                }
                same
            }
        };
        drop(file);
        if !usable {
            self.add_new_digests(offset, self.args.add_digests.unwrap_or_default())?;
        }
        let file = lock(self.input)?;
        let container = self.container(&file, offset)?;
        let stored = self
            .stored(&file, &container)?
            .ok_or_else(|| self.failed(what, Error::NoDigests))?;
        let comment = match &self.args.trusted_comment {
            Some(comment) => comment.clone(),
            None => self.comment(&stored.digests),
        };
        let (signature, name) = key
            .sign(&stored.message, &comment)
            .map_err(|e| self.failed(what, e))?;
        add_signature(file, offset, &stored, key.kind(), signature.as_bytes())
            .map_err(|e| self.failed(what, e))?;
        say(
            self.args,
            &format!(
                "signed:   by {name}, digests of {}",
                utc(stored.digests.time)
            ),
            &json!({"signed": {"signer": name, "time": stored.digests.time}}),
        )?;
        self.warn_if_open(&image, "the signature");
        Ok(EXIT_OK)
    }

    /// What minisign puts into a trusted comment, too.
    fn comment(&self, digests: &Digests) -> String {
        let name = self.input.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        format!("timestamp:{}\tfile:{name}", digests.time)
    }

    /// The secret key in a file, whose password may be asked for.
    fn unlocked(&self, path: &Path) -> Result<SecretKey> {
        let what = "cannot use the secret key";
        let failed = |error: Error| match &error {
            Error::Io(e) => ToolError::new(what).path(path).io(e),
            other => ToolError::new(what).path(path).cause(other),
        };
        match LockedKey::read(path).map_err(failed)? {
            LockedKey::Open(key) => Ok(key),
            LockedKey::Locked(key) => {
                let password = self.password(path)?;
                key.unlock(&password).map_err(failed)
            }
        }
    }

    /// The password for a key: the first line of a file or of standard input, or what is typed.
    fn password(&self, key: &Path) -> Result<zeroize::Zeroizing<String>> {
        let what = "cannot read the password";
        let failed = |path: &Path, e: &io::Error| ToolError::new(what).path(path).io(e);
        let mut line = zeroize::Zeroizing::new(String::new());
        match self.args.password_file.as_deref() {
            Some(path) if path == Path::new("-") => {
                let read = io::stdin().lock().take(LONGEST).read_line(&mut line);
                read.map_err(|e| failed(path, &e))?;
            }
            Some(path) => {
                let file = fs::File::open(path).map_err(|e| failed(path, &e))?;
                let read = io::BufReader::new(file.take(LONGEST)).read_line(&mut line);
                read.map_err(|e| failed(path, &e))?;
            }
            None => {
                let prompt = format!("Password for {}: ", key.display());
                let typed = rpassword::prompt_password(prompt).map_err(|e| {
                    ToolError::new(what)
                        .io(&e)
                        .hint("--password-file=FILE has it, '-' is standard input")
                })?;
                *line = typed;
            }
        }
        let end = line.trim_end_matches(['\r', '\n']).len();
        line.truncate(end);
        Ok(line)
    }

    fn add_signature(&self, path: &Path) -> Result<u8> {
        let what = "cannot add the signature";
        let mut text = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(LONGEST).read_to_end(&mut text))
            .map_err(|e| ToolError::new(what).path(path).io(&e))?;
        let kind = signature_kind(&text).map_err(|e| ToolError::new(what).path(path).cause(e))?;
        let (image, offset) = image_offset(self.args, self.input)?;
        let stored = self
            .stored(image.source().as_ref(), image.container())?
            .ok_or_else(|| self.failed(what, Error::NoDigests))?;
        let file = lock(self.input)?;
        add_signature(file, offset, &stored, kind, &text).map_err(|e| self.failed(what, e))?;
        say(
            self.args,
            &format!(
                "added:    a signature by {}; --verify-signature=KEY verifies it",
                kind.name()
            ),
            &json!({"added": {"signature": kind.name()}}),
        )?;
        self.warn_if_open(&image, "the signature");
        Ok(EXIT_OK)
    }

    fn verify(&self, key: Option<&str>) -> Result<u8> {
        let what = match key {
            Some(_) => "cannot verify the signature",
            None => "cannot check the digests",
        };
        let keys = key.map(public_keys).transpose().map_err(ToolError::new)?;
        let source = IoLayer::from_env().open(self.input);
        let source = source.map_err(|e| ToolError::new(what).cause(io_cause(&e)))?;
        // The tree is not looked at.
        let (source, offset) = self.located(source)?;
        let newest = self.container(source.as_ref(), offset)?;
        let (container, snapshot) = self.chosen(&source, newest)?;
        let chosen = snapshot.as_ref();
        let stored = self.stored(source.as_ref(), &container)?;
        let stored = stored.ok_or_else(|| self.without(key, chosen))?;
        let signer = match &keys {
            None => None,
            Some(keys) => {
                let found = self.signer(source.as_ref(), &container, &stored, keys);
                let failed = |reason| ToolError::new(what).path(self.input).cause(reason);
                Some(found?.map_err(|reasons| match reasons.as_str() {
                    "" => self.without(key, chosen),
                    _ => failed(format!("no signature counts: {reasons}")),
                })?)
            }
        };
        let total = container.size;
        let (whole, took) = with_bytes(self.args, "comparing", total, self.logger, |done| {
            verify_all(source.as_ref(), &container, &stored, done, &self.stop)
        });
        self.logger.verbose(format_args!("compared {took}"));
        let whole = whole.map_err(|e| self.failed(what, e))?;
        for found in &whole.mismatches {
            self.logger.error(format_args!(
                "section {} at offset {}: {}",
                found.section.position, found.section.payload_offset, found.why
            ));
        }
        let verified = Verified {
            snapshot: chosen,
            digests: &stored.digests,
            signer: signer.as_deref(),
            whole: &whole,
        };
        verified.report(self.args)?;
        Ok(match whole.mismatches.is_empty() {
            true => EXIT_OK,
            false => EXIT_FAILURE,
        })
    }

    /// The sections of the snapshot that the options name, and itself; without one, those of the newest.
    fn chosen(
        &self,
        source: &Arc<dyn Source>,
        newest: Container,
    ) -> Result<(Container, Option<Snapshot>)> {
        let Some(choice) = &self.args.snapshots.snapshot else {
            return Ok((newest, None));
        };
        sections_of_snapshot(source, newest, choice).map_err(|e| {
            ToolError::new("cannot open the snapshot")
                .path(self.input)
                .cause(ToolError::from(e))
                .hint("--snapshots lists all")
        })
    }

    /// The error of an image, or a snapshot of it, that is not signed with a `key`, or has no digests.
    fn without(&self, key: Option<&str>, snapshot: Option<&Snapshot>) -> ToolError {
        let (what, lacks) = match key {
            Some(_) => ("cannot verify the signature", "is not signed"),
            None => ("cannot check the digests", "has no digests"),
        };
        let failure = ToolError::new(what).path(self.input);
        match snapshot {
            Some(snapshot) if snapshot.archived => failure
                .cause(format!(
                    "snapshot '{}' is in an archive, which {lacks}",
                    snapshot.name
                ))
                .hint("a signature is for the newest snapshot; sections of all are verified by --all-generations"),
            Some(snapshot) => failure
                .cause(format!("snapshot '{}' {lacks}", snapshot.name))
                .hint("--snapshots names those that are signed; each is signed while it is the newest"),
            None => match self.last_signed() {
                Some(older) => failure
                    .cause(format!("the newest snapshot {lacks}"))
                    .hint(format!(
                        "snapshot {} '{}' is signed: --snapshot={} verifies it",
                        older.number, older.name, older.number
                    )),
                None if key.is_some() => failure.cause("the image is not signed"),
                None => self.failed(what, Error::NoDigests),
            },
        }
    }

    /// The newest snapshot that is signed, if the image can be opened and has several.
    fn last_signed(&self) -> Option<Snapshot> {
        let image = open(self.args, None, self.input, 1).ok()?;
        let (table, _) = image.snapshot_tables().ok()?;
        last_signed(&image, &table).cloned()
    }

    /// The image in a file, without its metadata being read.
    fn located(&self, source: Arc<dyn Source>) -> Result<(Arc<dyn Source>, u64)> {
        use redwarfs_format::section::locate_image_number;
        use redwarfs_reader::ImageOffset;
        let failed = |e: redwarfs_format::Error| self.failed("cannot open image", e.into());
        let len = source.len().map_err(|e| failed(e.into()))?;
        let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
        let locate = |number| locate_image_number(number, len, &read, &|at| source.next_data(at));
        let offset = match self.args.image_offset {
            ImageOffset::Auto => locate(1).map_err(failed)?,
            ImageOffset::Nth(number) => locate(number).map_err(failed)?,
            ImageOffset::At(offset) => offset,
        };
        Ok((source, offset))
    }

    /// Who has signed the digests, or why no signature counts: an empty text if there is none.
    fn signer(
        &self,
        source: &dyn Source,
        container: &Container,
        stored: &StoredDigests,
        keys: &dyn VerifySignature,
    ) -> Result<Result<String, String>> {
        let signatures = stored_signatures(source, container, stored.header_offset)
            .map_err(|e| self.failed("cannot verify the signature", e.into()))?;
        let mut reasons = Vec::new();
        for signature in &signatures {
            match keys.verify(&stored.message, signature.kind, &signature.text) {
                Ok(name) => return Ok(Ok(name)),
                Err(reason) => reasons.push(reason),
            }
        }
        Ok(Err(reasons.join("; ")))
    }
}

/// What was compared, and how it came out.
struct Verified<'a> {
    /// If the options name one.
    snapshot: Option<&'a Snapshot>,
    digests: &'a Digests,
    signer: Option<&'a str>,
    whole: &'a WholeImage,
}

impl Verified<'_> {
    fn report(&self, args: &Args) -> Result<()> {
        let mut out = Output::new();
        if args.json {
            let mut json = JsonWriter::compact(&mut out);
            self.write_json(&mut json).map_err(|e| output_error(&e))?;
            return out.finish();
        }
        if args.quiet {
            return Ok(());
        }
        let Self {
            snapshot,
            digests,
            signer,
            whole,
        } = *self;
        if let Some(snapshot) = snapshot {
            out.line(&format!(
                "snapshot: {} '{}'",
                snapshot.number, snapshot.name
            ))?;
        }
        if let Some(signer) = signer {
            out.line(&format!("signed:   by {signer}"))?;
        }
        out.line(&format!(
            "digests:  {} of {}",
            described(digests),
            utc(digests.time)
        ))?;
        let sections = counted(whole.sections as u64, "section", "sections");
        let differing = whole.mismatches.len() as u64;
        out.line(&match (differing, signer) {
            (0, Some(_)) => format!("OK: {sections}, all as they were signed"),
            (0, None) => format!("OK: {sections}, all with their digests"),
            (n, _) => format!(
                "changed: {} of {sections} not as stated",
                counted(n, "section", "sections")
            ),
        })?;
        out.finish()
    }

    fn write_json(&self, json: &mut JsonWriter<&mut Output>) -> io::Result<()> {
        let (digests, whole) = (self.digests, self.whole);
        json.begin_object()?;
        json.key("digests")?;
        json.begin_object()?;
        json.key("algorithm")?;
        json.string(digests.algorithm.name())?;
        json.boolean_at("intact", whole.mismatches.is_empty())?;
        json.key("mismatches")?;
        json.begin_array()?;
        for found in &whole.mismatches {
            json.begin_object()?;
            json.number_at("offset", found.section.payload_offset)?;
            json.number_at("section", found.section.position)?;
            json.key("type")?;
            json.string(&found.section.ty.to_string())?;
            json.end_object()?;
        }
        json.end_array()?;
        json.number_at("sections", whole.sections as u64)?;
        json.number_at("time", digests.time)?;
        json.end_object()?;
        if let Some(signer) = self.signer {
            json.key("signer")?;
            json.string(signer)?;
        }
        if let Some(snapshot) = self.snapshot {
            json.key("snapshot")?;
            json.begin_object()?;
            json.string_at("name", &snapshot.name)?;
            json.number_at("number", snapshot.number.0)?;
            json.end_object()?;
        }
        json.end_object()?;
        json.finish()?;
        Ok(())
    }
}

fn described(digests: &Digests) -> String {
    let leaves = digests
        .leaves
        .as_ref()
        .map_or(0, |leaves| leaves.groups.len());
    let leaves = match leaves {
        0 => String::new(),
        n => format!(
            " and of the leaves of {}",
            counted(n as u64, "block", "blocks")
        ),
    };
    format!(
        "{} digests of {}{leaves}",
        digests.algorithm.name(),
        counted(digests.entries.len() as u64, "section", "sections")
    )
}
