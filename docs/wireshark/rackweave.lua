-- Wireshark's view of Rackweave: packets (docs/wire.md) and datagrams of the transport (docs/transport.md).
--   wireshark -X lua_script:docs/wireshark/rackweave.lua FILE.pcap
-- Datagrams are recognized on port 21079 and, whatever the port, by their form.

local rw = Proto("rackweave", "Rackweave")

local OPS = {
  [1] = "create_vssd", [2] = "del_vssd", [3] = "read", [4] = "write", [5] = "gc_op", [6] = "reply", [7] = "peer",
  [8] = "control", [9] = "load", [16] = "chunk", [17] = "ack", [18] = "ping", [19] = "pong", [20] = "challenge", [21] = "proof", [22] = "outdated",
}
local CLASSES = { [0] = "gold", [1] = "silver", [2] = "copper" }
local IO = { [0] = "read", [1] = "write", [2] = "zero", [3] = "flush", [4] = "fence", [5] = "status",
  [6] = "read of a snapshot", [7] = "status of a snapshot" }
local REPLY = { [0] = "data", [1] = "done", [2] = "extents", [3] = "failed" }
local FAILED = {
  [0] = "not serving", [1] = "no space", [2] = "fenced", [3] = "corrupt", [4] = "device", [5] = "malformed",
}
local PEER = {
  [0] = "invalidation", [1] = "range invalidation", [2] = "acknowledgement", [3] = "refusal", [4] = "validation",
  [5] = "range validation", [6] = "credit wanted", [7] = "credit granted", [8] = "flush", [9] = "flush's answer",
  [10] = "fence", [11] = "fence's answer", [12] = "stale epoch", [13] = "digests wanted", [14] = "digests",
  [15] = "scan wanted", [16] = "scan", [17] = "block wanted", [18] = "block", [19] = "clients wanted", [20] = "clients",
  [21] = "sums wanted", [22] = "sums", [23] = "heal", [24] = "replay", [25] = "block lost", [26] = "clients", [27] = "mark lost", [28] = "lost marked",
}
local CONTROL = {
  [0] = "hello of a server without drive id", [1] = "welcome to a server", [2] = "heartbeat", [3] = "lease", [4] = "new view",
  [5] = "set recovered", [6] = "new epoch wanted", [7] = "client's hello", [8] = "welcome to a client", [9] = "map wanted",
  [10] = "map", [11] = "attach", [12] = "attached", [13] = "administration", [14] = "its answer", [15] = "volume changed",
  [16] = "hello of an empty server without drive id", [17] = "server refused", [18] = "volume limited", [20] = "vSSDs of a server",
  [21] = "slots cleared", [22] = "wear", [23] = "members silent", [24] = "members reached", [25] = "flash worn out", [26] = "rack wanted", [27] = "rack", [28] = "server's hello", [30] = "drive refused",
}
local GC = {
  [0] = "soft", [1] = "regular", [2] = "bg", [3] = "accept", [4] = "delay", [5] = "finish", [6] = "still collecting",
  [7] = "idle", [8] = "swap", [9] = "still collecting for a swap", [10] = "swap beside a collection",
}
local CONTENTS = { [0] = "bytes", [1] = "zero", [2] = "elided by a seed", [3] = "elided by sector" }

local f = {}
local function field(name, make) f[name] = make("rackweave." .. name) end
local function u8(label, values) return function(n) return ProtoField.uint8(n, label, base.DEC, values) end end
local function u8x(label) return function(n) return ProtoField.uint8(n, label, base.HEX) end end
local function u16(label) return function(n) return ProtoField.uint16(n, label) end end
local function u32(label) return function(n) return ProtoField.uint32(n, label) end end
local function u32x(label) return function(n) return ProtoField.uint32(n, label, base.HEX) end end
local function u64(label) return function(n) return ProtoField.uint64(n, label) end end
local function u64x(label) return function(n) return ProtoField.uint64(n, label, base.HEX) end end
local function bytes(label) return function(n) return ProtoField.bytes(n, label) end end
local function flag(label, mask) return function(n) return ProtoField.bool(n, label, 8, nil, mask) end end

-- RackBlox's nine bytes, and what every datagram has.
field("op", u8("Operation", OPS))
field("vssd", u32("vSSD"))
field("lat", u32("Latency so far, ns"))
field("version", u8("Version"))
field("class", u8("Class", CLASSES))
field("flags", u8x("Flags"))
field("flags.elided", flag("Contents are elided", 0x01))
field("flags.extended", flag("An extension follows", 0x80))
field("source", u32("Source"))
field("destination", u32("Destination"))
-- The long form's header.
field("original_vssd", u32("Original vSSD"))
field("set", u32("Replica set"))
field("epoch", u32("Epoch"))
field("incarnation", u64("Incarnation"))
field("request", u64("Request"))
field("length", u32("Length of the body"))
field("checksum", u32x("Checksum"))
field("key", u8("Key"))
field("counter", u64("Counter"))
field("tag", bytes("Tag"))
-- The extension.
field("ext.version", u8("Version"))
field("ext.flags", u8x("Flags"))
field("ext.routed", flag("By the switch", 0x01))
field("ext.ack_now", flag("Acknowledge at once", 0x02))
field("ext.acks", flag("Acknowledgements follow", 0x04))
field("ext.encrypted", flag("Payload encrypted", 0x08))
field("ext.unheard", flag("No acknowledgement heard", 0x10))
field("ext.group", flag("To a group", 0x20))
field("ext.attempt", u8("Attempt"))
field("ext.newest", u8("Newest version"))
field("ext.life", u64("Life of the sender"))
field("ext.transfer", u64("Transfer"))
field("ext.body", u32("Bytes of the body"))
field("ext.chunk", u16("Chunk"))
field("ext.chunk_bytes", u16("Bytes of a chunk"))
field("ext.prefix", u16("Bytes before the data"))
field("ext.payload", u16("Bytes of this payload"))
field("payload", bytes("Payload"))
field("token", u64x("Token"))
field("answer", u64x("Answered token"))
field("refused", u64("Incarnation refused"))
field("newest", u64("Newest incarnation"))
-- Acknowledgements.
field("ack.whose", u32x("Whose"))
field("ack.echo", u64x("Echo"))
field("ack.hold", u32("Held, ns"))
field("ack.received", u32("Received"))
field("ack.marked", u32("Marked"))
field("ack.entries", u8("Entries"))
field("ack.transfer", u64("Transfer"))
field("ack.routed", flag("By the switch", 0x01))
field("ack.whole", flag("Whole", 0x02))
field("ack.group", flag("To a group", 0x04))
field("ack.attempt", u8("Attempt"))
field("ack.base", u16("First missing chunk"))
field("ack.bitmap", bytes("Chunks here after it"))
-- Bodies.
field("gc.field", u8("gc_op", GC))
field("gc.sequence", u64("Sequence"))
field("io", u8("Request", IO))
field("volume", u32("Volume"))
field("first", u64("First"))
field("count", u32("Count"))
field("fua", u8("FUA"))
field("attach", u32("Attach"))
field("snapshot", u32("Snapshot"))
field("mutation.client", u64("Mutation: client"))
field("mutation.sequence", u64("Mutation: sequence"))
field("mutation.floor", u64("Mutation: floor"))
field("contents", u8("Contents", CONTENTS))
field("contents.sectors", u32("Sectors"))
field("contents.data", bytes("Data"))
field("reply", u8("Answer", REPLY))
field("failed", u8("Failure", FAILED))
field("peer", u8("Message", PEER))
field("control", u8("Message", CONTROL))
field("load.answered", u64("Reads answered"))
field("load.waiting", u32("Reads that wait"))
field("body", bytes("Body"))

local all = {}
for _, v in pairs(f) do all[#all + 1] = v end
rw.fields = all

local malformed = ProtoExpert.new("rackweave.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
rw.experts = { malformed }

local HEADER, SHORT, EXTENSION, BRIEF = 80, 44, 32, 12

local function name(values, n) return values[n] or tostring(n) end

-- Volume, first and count: sectors of a read or write, blocks of the others.
local function sectors(tvb, at, tree)
  tree:add(f["volume"], tvb(at, 4))
  tree:add(f["first"], tvb(at + 4, 8))
  tree:add(f["count"], tvb(at + 12, 4))
  return at + 16
end
local function blocks(tvb, at, tree)
  tree:add(f["volume"], tvb(at, 4))
  tree:add(f["first"], tvb(at + 4, 4), UInt64(tvb(at + 4, 4):uint()))
  tree:add(f["count"], tvb(at + 8, 4))
  return at + 12
end
local function mutation(tvb, at, tree)
  tree:add(f["mutation.client"], tvb(at, 8))
  tree:add(f["mutation.sequence"], tvb(at + 8, 8))
  tree:add(f["mutation.floor"], tvb(at + 16, 8))
  return at + 24
end
local function contents(tvb, at, tree)
  tree:add(f["contents"], tvb(at, 1))
  tree:add(f["contents.sectors"], tvb(at + 1, 4))
  if tvb:len() > at + 5 then tree:add(f["contents.data"], tvb(at + 5)) end
  return tvb(at + 1, 4):uint()
end

-- What a body says, in words for the list. Only its beginning may be here.
local function io_body(tvb, tree)
  local kind = tvb(0, 1):uint()
  tree:add(f["io"], tvb(0, 1))
  if kind == 0 or kind == 6 then
    local at = sectors(tvb, 1, tree)
    if kind == 6 then tree:add(f["snapshot"], tvb(at, 4)) end
    return string.format("volume %d sectors %s+%d", tvb(1, 4):uint(), tvb(5, 8):uint64(), tvb(13, 4):uint())
  elseif kind == 1 then
    local at = sectors(tvb, 1, tree)
    tree:add(f["fua"], tvb(at, 1))
    tree:add(f["attach"], tvb(at + 1, 4))
    contents(tvb, mutation(tvb, at + 5, tree), tree)
    return string.format("volume %d sectors %s+%d", tvb(1, 4):uint(), tvb(5, 8):uint64(), tvb(13, 4):uint())
  elseif kind == 2 or kind == 5 or kind == 7 then
    local at = blocks(tvb, 1, tree)
    if kind == 2 then
      tree:add(f["fua"], tvb(at, 1))
      tree:add(f["attach"], tvb(at + 1, 4))
      mutation(tvb, at + 5, tree)
    elseif kind == 7 then
      tree:add(f["snapshot"], tvb(at, 4))
    end
    return string.format("%s volume %d blocks %d+%d", name(IO, kind), tvb(1, 4):uint(), tvb(5, 4):uint(), tvb(9, 4):uint())
  end
  tree:add(f["volume"], tvb(1, 4))
  if kind == 4 then tree:add(f["attach"], tvb(5, 4)) end
  return name(IO, kind) .. " volume " .. tvb(1, 4):uint()
end

local function reply_body(tvb, tree)
  if tvb(0, 1):uint() ~= 0 then return "of the switch" end
  local kind = tvb(1, 1):uint()
  tree:add(f["reply"], tvb(1, 1))
  if kind == 0 then return string.format("data, %d sectors", contents(tvb, 2, tree)) end
  if kind == 3 then
    tree:add(f["failed"], tvb(2, 1))
    return "failed: " .. name(FAILED, tvb(2, 1):uint())
  end
  return name(REPLY, kind)
end

local function body(op, tvb, tree)
  if tvb:len() == 0 then return "" end
  if op == 3 or op == 4 then return io_body(tvb, tree) end
  if op == 5 then
    tree:add(f["gc.field"], tvb(0, 1))
    tree:add(f["gc.sequence"], tvb(1, 8))
    return name(GC, tvb(0, 1):uint()) .. " " .. tostring(tvb(1, 8):uint64())
  elseif op == 6 then
    return reply_body(tvb, tree)
  elseif op == 7 then
    tree:add(f["peer"], tvb(0, 1))
    if tvb:len() > 1 then tree:add(f["body"], tvb(1)) end
    return name(PEER, tvb(0, 1):uint())
  elseif op == 8 then
    tree:add(f["control"], tvb(0, 1))
    if tvb:len() > 1 then tree:add(f["body"], tvb(1)) end
    return name(CONTROL, tvb(0, 1):uint())
  elseif op == 9 then
    tree:add(f["load.answered"], tvb(0, 8))
    tree:add(f["load.waiting"], tvb(8, 4))
    return string.format("%s answered, %d wait", tostring(tvb(0, 8):uint64()), tvb(8, 4):uint())
  end
  tree:add(f["body"], tvb(0))
  return ""
end

-- A body of which the beginning is here: what is cut off is no error.
local function body_or_part(op, tvb, tree, whole)
  local sub = tree:add(rw, tvb(0), "Body")
  local ok, text = pcall(body, op, tvb, sub)
  if ok then return text end
  if whole then sub:add_proto_expert_info(malformed) end
  return whole and "malformed" or ""
end

local function acks(tvb, at, tree)
  local start = at
  local sub = tree:add(rw, tvb(at), "Acknowledgements")
  sub:add(f["ack.whose"], tvb(at, 4))
  sub:add(f["ack.echo"], tvb(at + 4, 8))
  sub:add(f["ack.hold"], tvb(at + 12, 4))
  sub:add(f["ack.received"], tvb(at + 16, 4))
  sub:add(f["ack.marked"], tvb(at + 20, 4))
  at = at + 24
  local entries = tvb(at, 1):uint()
  sub:add(f["ack.entries"], tvb(at, 1))
  at = at + 1
  for _ = 1, entries do
    local words = math.floor(tvb(at, 1):uint() / 16)
    local e = sub:add(rw, tvb(at, 12 + 8 * words), "Transfer " .. tostring(tvb(at + 2, 8):uint64()))
    e:add(f["ack.routed"], tvb(at, 1))
    e:add(f["ack.whole"], tvb(at, 1))
    e:add(f["ack.group"], tvb(at, 1))
    e:add(f["ack.attempt"], tvb(at + 1, 1))
    e:add(f["ack.transfer"], tvb(at + 2, 8))
    e:add(f["ack.base"], tvb(at + 10, 2))
    if words > 0 then e:add(f["ack.bitmap"], tvb(at + 12, 8 * words)) end
    at = at + 12 + 8 * words
  end
  sub:set_len(at - start)
  return at, entries
end

-- Key and counter: eight bytes.
local function counter(tvb, at, tree)
  tree:add(f["key"], tvb(at, 1))
  tree:add(f["counter"], tvb(at + 1, 7))
end

-- The extension from `at` on. Returns where it ends, and what it said.
local function extension(tvb, at, tree, chunk)
  local sub = tree:add(rw, tvb(at, chunk and EXTENSION or BRIEF), "Transport")
  local flags = tvb(at + 1, 1):uint()
  sub:add(f["ext.version"], tvb(at, 1))
  sub:add(f["ext.flags"], tvb(at + 1, 1))
  for _, n in ipairs({ "routed", "ack_now", "acks", "encrypted", "unheard", "group" }) do sub:add(f["ext." .. n], tvb(at + 1, 1)) end
  sub:add(f["ext.attempt"], tvb(at + 2, 1))
  sub:add(f["ext.newest"], tvb(at + 3, 1))
  sub:add(f["ext.life"], tvb(at + 4, 8))
  local x = { acks = flags % 8 >= 4, encrypted = flags % 16 >= 8 }
  if not chunk then return at + BRIEF, x end
  sub:add(f["ext.transfer"], tvb(at + 12, 8))
  sub:add(f["ext.body"], tvb(at + 20, 4))
  sub:add(f["ext.chunk"], tvb(at + 24, 2))
  sub:add(f["ext.chunk_bytes"], tvb(at + 26, 2))
  sub:add(f["ext.prefix"], tvb(at + 28, 2))
  sub:add(f["ext.payload"], tvb(at + 30, 2))
  x.transfer, x.body = tvb(at + 12, 8):uint64(), tvb(at + 20, 4):uint()
  x.chunk, x.chunk_bytes = tvb(at + 24, 2):uint(), tvb(at + 26, 2):uint()
  x.chunks = math.max(1, math.ceil(x.body / math.max(1, x.chunk_bytes)))
  return at + EXTENSION, x
end

local function chunk_words(x)
  if x.chunks == 1 then return "" end
  return string.format(" [transfer %s chunk %d of %d]", tostring(x.transfer), x.chunk + 1, x.chunks)
end

local function long(tvb, op, tree)
  tree:add(f["original_vssd"], tvb(20, 4))
  tree:add(f["set"], tvb(24, 4))
  tree:add(f["epoch"], tvb(28, 4))
  tree:add(f["incarnation"], tvb(32, 8))
  tree:add(f["request"], tvb(40, 8))
  counter(tvb, 48, tree)
  tree:add(f["length"], tvb(56, 4))
  tree:add(f["checksum"], tvb(60, 4))
  tree:add(f["tag"], tvb(64, 16))
  local text = string.format(" vSSD %d #%s ", tvb(1, 4):uint(), tostring(tvb(40, 8):uint64()))
  if tvb(11, 1):uint() < 128 then
    if tvb:len() == HEADER then return text end
    return text .. body_or_part(op, tvb(HEADER):tvb(), tree, tvb:len() == HEADER + tvb(56, 4):uint())
  end
  local at, x = extension(tvb, HEADER, tree, true)
  if x.acks then at = acks(tvb, at, tree) end
  if at >= tvb:len() then return text .. chunk_words(x) end
  if x.encrypted then
    tree:add(f["payload"], tvb(at)):append_text(" (encrypted)")
    return text .. "encrypted" .. chunk_words(x)
  elseif x.chunk > 0 then
    tree:add(f["payload"], tvb(at))
    return text .. chunk_words(x)
  end
  return text .. body_or_part(op, tvb(at):tvb(), tree, x.chunks == 1) .. chunk_words(x)
end

local function short(tvb, op, tree)
  counter(tvb, 20, tree)
  tree:add(f["tag"], tvb(28, 16))
  local at, x = extension(tvb, SHORT, tree, op == 16)
  if op >= 18 and op <= 20 then
    tree:add(f["token"], tvb(at, 8))
    return ""
  elseif op == 21 then
    tree:add(f["answer"], tvb(at, 8))
    tree:add(f["token"], tvb(at + 8, 8))
    return ""
  elseif op == 22 then
    tree:add(f["refused"], tvb(at, 8))
    tree:add(f["newest"], tvb(at + 8, 8))
    return ""
  end
  local text = ""
  if x.acks then
    local entries
    at, entries = acks(tvb, at, tree)
    text = string.format(" of %d transfers", entries)
  end
  if op == 17 then return text end
  if at < tvb:len() then
    local payload = tree:add(f["payload"], tvb(at))
    if x.encrypted then payload:append_text(" (encrypted)") end
  end
  return chunk_words(x) .. (x.encrypted and " encrypted" or "")
end

-- Whether the bytes have the form of a packet or datagram.
local function ours(tvb)
  local len = tvb:len()
  if len < SHORT + BRIEF then return false end
  local op, class = tvb(0, 1):uint(), tvb(10, 1):uint()
  if class > 2 then return false end
  if op >= 1 and op <= 9 then
    if len < HEADER or tvb(9, 1):uint() ~= 1 then return false end
    local flags, body_bytes = tvb(11, 1):uint(), tvb(56, 4):uint()
    if flags >= 128 then
      return len >= HEADER + EXTENSION and tvb(HEADER + 20, 4):uint() == body_bytes
    end
    return flags <= 1 and HEADER + body_bytes >= len
  end
  return op >= 16 and op <= 22 and tvb(11, 1):uint() == 0 and tvb(1, 4):uint() == 0 and tvb(SHORT, 1):uint() >= 2 and tvb(SHORT, 1):uint() <= 4
end

function rw.dissector(tvb, pinfo, tree)
  if not ours(tvb) then return 0 end
  local op = tvb(0, 1):uint()
  local root = tree:add(rw, tvb(0))
  root:add(f["op"], tvb(0, 1))
  root:add(f["vssd"], tvb(1, 4))
  root:add(f["lat"], tvb(5, 4))
  root:add(f["version"], tvb(9, 1))
  root:add(f["class"], tvb(10, 1))
  local flags = root:add(f["flags"], tvb(11, 1))
  flags:add(f["flags.elided"], tvb(11, 1))
  flags:add(f["flags.extended"], tvb(11, 1))
  root:add(f["source"], tvb(12, 4))
  root:add(f["destination"], tvb(16, 4))
  local ok, text = pcall(op >= 16 and short or long, tvb, op, root)
  if not ok then
    root:add_proto_expert_info(malformed)
    text = " malformed"
  end
  local from, to = tvb(12, 4):uint(), tvb(16, 4):uint()
  pinfo.cols.protocol = "Rackweave"
  pinfo.cols.info = string.format("%s n%d → n%d%s", name(OPS, op), from, to, text)
  return tvb:len()
end

DissectorTable.get("udp.port"):add(21079, rw)
rw:register_heuristic("udp", function(tvb, pinfo, tree)
  if not ours(tvb) then return false end
  rw.dissector(tvb, pinfo, tree)
  return true
end)
