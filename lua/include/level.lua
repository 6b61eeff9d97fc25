-- One priority level spans 10^13 ms of scores, so that no age of a message ever crosses into the next level.
local LEVEL = 1e13
