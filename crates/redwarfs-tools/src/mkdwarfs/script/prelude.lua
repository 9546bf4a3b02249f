-- Runs before a script. Takes away what would make an image depend on anything but the input, or
-- would reach outside, and returns what the program calls for every entry.
-- Gets a function that writes a line to the log, and one that raises an error after a request to
-- stop.

local log, check_stop = ...
-- The originals, which stay in use here.
local error, getmetatable, next, pcall, rawequal, rawget, select, setmetatable, tostring, type, xpcall =
  error, getmetatable, next, pcall, rawequal, rawget, select, setmetatable, tostring, type, xpcall
local concat, move, sort, min = table.concat, table.move, table.sort, math.min
local randomseed = math.randomseed

-- Files, other chunks, the garbage collector, standard error.
collectgarbage, dofile, load, loadfile, require, warn = nil, nil, nil, nil, nil, nil
string.dump = nil

function _G.print(...)
  local parts = {}
  for i = 1, select("#", ...) do
    parts[i] = tostring((select(i, ...)))
  end
  log(concat(parts, "\t"))
end

-- Nothing catches a request to stop.
local function settled(...)
  check_stop()
  return ...
end

function _G.pcall(...)
  return settled(pcall(...))
end

function _G.xpcall(...)
  return settled(xpcall(...))
end

-- Finalizers run with the stop flag out of reach, and both at times that vary.
function _G.setmetatable(table, meta)
  if type(meta) == "table" and (rawget(meta, "__gc") ~= nil or rawget(meta, "__mode") ~= nil) then
    error("a metatable cannot have '__gc' or '__mode' here", 2)
  end
  return setmetatable(table, meta)
end

-- Hashes differ from run to run, so tables are gone through in an order of our own.
local rank = { number = 1, string = 2, boolean = 3 }

local function precedes(a, b)
  local x, y = rank[type(a)], rank[type(b)]
  if x ~= y then
    return x < y
  elseif x == 3 then
    return not a and b
  end
  return a < b
end

local function keys(table)
  local list, count = {}, 0
  for key in next, table do
    if not rank[type(key)] then
      error("a table with a " .. type(key) .. " as a key has no fixed order", 3)
    end
    count = count + 1
    list[count] = key
  end
  sort(list, precedes)
  return list
end

local function wants_table(value, name)
  if type(value) ~= "table" then
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. type(value) .. ")", 3)
  end
end

function _G.pairs(table)
  local meta = getmetatable(table)
  local own = type(meta) == "table" and rawget(meta, "__pairs")
  if own then
    local step, state, first = own(table)
    return step, state, first
  end
  wants_table(table, "pairs")
  local list, at = keys(table), 0
  return function()
    local key, value
    repeat
      at = at + 1
      key = list[at]
      if key == nil then
        return nil
      end
      value = rawget(table, key)
    until value ~= nil
    return key, value
  end, table, nil
end

function _G.next(table, key)
  wants_table(table, "next")
  if key ~= nil then
    error("'next' only gives the first key here, use 'pairs'", 2)
  end
  local first = keys(table)[1]
  if first == nil then
    return nil
  end
  return first, rawget(table, first)
end

-- The pivots of the original are chosen by the clock when that helps. This one is stable.
function table.sort(list, less)
  wants_table(list, "sort")
  less = less or function(a, b)
    return a < b
  end
  local count, width = #list, 1
  local from, to = list, {}
  while width < count do
    for start = 1, count, 2 * width do
      local middle, stop = min(start + width, count + 1), min(start + 2 * width, count + 1)
      local i, j = start, middle
      for at = start, stop - 1 do
        if i < middle and (j >= stop or not less(from[j], from[i])) then
          to[at], i = from[i], i + 1
        else
          to[at], j = from[j], j + 1
        end
      end
    end
    from, to = to, from
    width = 2 * width
  end
  if not rawequal(from, list) then
    move(from, 1, count, 1, list)
  end
end

function math.randomseed(...)
  if select("#", ...) == 0 then
    error("'math.randomseed' needs a number here", 2)
  end
  return randomseed(...)
end
randomseed(0, 0)

-- What the script has made of itself: its functions, and the name of the one that is running.
local filter, category, order, running

local function bind()
  filter, category, order = _G.filter, _G.category, _G.order
  return filter, category, order
end

local function decide(path, name, kind, size, mode, uid, gid, mtime, atime, ctime, nlink, target)
  local entry = {
    path = path, name = name, type = kind, size = size, mode = mode, uid = uid, gid = gid,
    mtime = mtime, atime = atime, ctime = ctime, nlink = nlink, target = target,
  }
  local keep, group, key = true, nil, nil
  if filter then
    running = "filter"
    keep = filter(entry)
  end
  if keep == true and kind == "file" then
    if category then
      running = "category"
      group = category(entry)
    end
    if order then
      running = "order"
      key = order(entry)
    end
  end
  return keep, group, key
end

return bind, decide, function()
  return running
end
